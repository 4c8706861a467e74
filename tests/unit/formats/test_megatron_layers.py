"""Kinds of layers and their stages that arguments of Megatron-LM describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.plan.to_run import to_run
from predictor.core.schema.sections import validate
from predictor.formats.megatron.layers import allocated
from predictor.formats.megatron.reader import read

SMALL = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --micro-batch-size 2 "


def small(tmp_path: Path, arguments: str) -> dict[str, dict[str, Any]]:
    path = tmp_path / "launch.sh"
    path.write_text(SMALL + arguments, encoding="utf-8")
    return read(path).content


def test_latent_attention(tmp_path: Path) -> None:
    arguments = "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --v-head-dim 64"
    model = small(tmp_path, f"{arguments} --qk-layernorm --kv-channels 128 --mtp-num-layers 1")["model"]
    assert model["latent_attention"] == {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
    }
    assert "head_dim" not in model
    assert model["num_mtp_layers"] == 1


def test_hybrid_of_mamba_and_attention(tmp_path: Path) -> None:
    pattern = "--is-hybrid-model --hybrid-override-pattern M-M*M-ME --num-experts 4 --mamba-num-heads 32"
    model = small(tmp_path, f"{pattern} --squared-relu --position-embedding-type none")["model"]
    mamba, alone = "mamba2", "none"
    assert model["layer_types"] == [mamba, alone, mamba, "full_attention", mamba, alone, mamba, alone]
    assert model["ffn_types"] == ["none", "dense", "none", "none", "none", "dense", "none", "experts"]
    assert model["mamba2"]["num_heads"] == 32
    assert (model["activation"], model["positions"]) == ("squared_relu", "none")
    assert model["moe"]["num_experts"] == 4


def test_experts_in_every_second_layer(tmp_path: Path) -> None:
    model = small(tmp_path, "--num-experts 8 --moe-layer-freq 2")["model"]
    assert model["ffn_types"] == ["experts", "dense"] * 4
    assert "num_dense_layers" not in model["moe"]


def test_windows_in_some_layers(tmp_path: Path) -> None:
    model = small(tmp_path, "--window-size 127,0 --window-attn-skip-freq 4 --softmax-type learnable")["model"]
    assert model["layer_types"] == [*["sliding_attention"] * 3, "full_attention"] * 2
    assert (model["sliding_window"], model["attention_sinks"]) == (128, True)


@pytest.mark.parametrize(
    ("written", "layers"),
    [
        ("4", [True, True, True, False]),
        ("'[0,1]*4'", [True, False] * 4),
        ("[0]*7+[1]", [True] * 7 + [False]),
        ("[0]*8", None),
    ],
)
def test_layers_without_rotary_positions(written: str, layers: list[bool] | None, tmp_path: Path) -> None:
    model = small(tmp_path, f"--position-embedding-type rope --no-rope-freq {written}")["model"]
    assert model.get("rotary_layers") == layers


def test_layers_without_rotary_positions_are_a_period_or_one_of_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a list of 8 zeros and ones"):
        small(tmp_path, "--position-embedding-type rope --no-rope-freq [0,1]*2")


def test_embedding_and_loss_can_count_as_layers(tmp_path: Path) -> None:
    arguments = "--num-layers 30 --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split "
    layout = small(tmp_path, f"{arguments}--account-for-loss-in-pipeline-split")["parallelism"]
    assert (layout["embedding_counts_as_layer"], layout["loss_counts_as_layer"]) == (True, True)
    assert "layers_per_stage" not in layout


def test_layers_of_every_stage_can_be_written(tmp_path: Path) -> None:
    arguments = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout"
    layout = small(tmp_path, f"{arguments} 'Et*1|(tt|)*2,ttL'")["parallelism"]
    assert (layout["layers_per_stage"], layout["virtual_pipeline_parallel_size"]) == ("Et*1|(tt|)*2,ttL", 2)


def test_first_and_last_stage_of_an_interleaved_schedule(tmp_path: Path) -> None:
    arguments = "--num-layers 20 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2"
    ends = "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4"
    layout = small(tmp_path, f"{arguments} {ends}")["parallelism"]
    assert layout["layers_per_stage"] == [[2, 2], [3, 3], [3, 3], [2, 2]]


@pytest.mark.parametrize(
    ("num_layers", "attention", "ffn", "pattern"),
    [
        (8, 0.25, 0.0, "MM*MM*MM"),
        (8, 0.0, 0.5, "M-M-M-M-"),
        (10, 0.1, 0.3, "MM-MM*-MM-"),
        (4, 0.0, 0.0, "MMMM"),
    ],
)
def test_hybrid_by_shares_of_layers(num_layers: int, attention: float, ffn: float, pattern: str) -> None:
    assert allocated(num_layers, attention, ffn) == pattern


def test_shares_make_the_layers(tmp_path: Path) -> None:
    model = small(tmp_path, "--hybrid-attention-ratio 0.25 --position-embedding-type none")["model"]
    assert model["layer_types"].count("full_attention") == 2
    assert model["mamba2"]["num_heads"] == 32  # twice the hidden size in heads of 64


@pytest.mark.parametrize(
    "arguments",
    [
        "--hybrid-override-pattern M-M*M-ME --num-experts 4 --position-embedding-type none --squared-relu",
        "--multi-latent-attention --q-lora-rank 256 --kv-lora-rank 128 --v-head-dim 64 --mtp-num-layers 1",
        "--multi-latent-attention --recompute-granularity selective --recompute-modules mla_up_proj layernorm",
        "--num-experts 8 --moe-layer-freq 2",
        "--window-size 127,0 --window-attn-skip-freq 4 --softmax-type learnable",
        "--bert-no-binary-head",
        "--position-embedding-type alibi --embed-layernorm",
    ],
)
def test_models_become_runs(arguments: str, tmp_path: Path) -> None:
    rope = "" if "position" in arguments else "--position-embedding-type rope"
    content = small(
        tmp_path, f"{arguments} {rope} --vocab-size 32000 --bf16 --disable-bias-linear --normalization RMSNorm"
    )
    run = to_run(validate({"system": "H100", **content}), gpus_per_node=8)
    assert run.model.num_parameters() > 0


def test_norms_and_gates_of_attention(tmp_path: Path) -> None:
    assert small(tmp_path, "--qk-l2-norm")["model"]["qk_norm"] == "weightless"
    assert small(tmp_path, "--qk-layernorm")["model"]["qk_norm"] is True
    assert small(tmp_path, "--attention-output-gate")["model"]["attention_output_gate"] is True


@pytest.mark.parametrize(("heads", "groups", "fits"), [(32, 2, True), (32, 8, True), (36, 6, False), (38, 2, False)])
def test_mamba_layers_split_by_context(heads: int, groups: int, fits: bool, tmp_path: Path) -> None:
    """Four ranks split the heads, and the groups or copies of them."""
    pattern = f"--is-hybrid-model --hybrid-override-pattern M-M*M-M- --mamba-num-heads {heads}"
    sizes = f"--mamba-num-groups {groups} --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000"
    content = small(tmp_path, f"{pattern} {sizes} --context-parallel-size 4 --position-embedding-type none")
    config = validate({"system": "H100", **content, "parallelism": {"context_parallel_size": 4}})
    if fits:
        assert to_run(config, gpus_per_node=8).layout.context_parallel_size == 4
        return
    with pytest.raises(ConfigError, match=f"the {heads} Mamba-2 heads of a tensor-parallel rank"):
        to_run(config, gpus_per_node=8)


def test_segments_of_a_hybrid_are_the_chunks_of_its_stages(tmp_path: Path) -> None:
    arguments = "--is-hybrid-model --hybrid-layer-pattern 'M-M|*-|M-|*' --pipeline-model-parallel-size 2"
    layout = small(tmp_path, arguments)["parallelism"]
    assert layout["layers_per_stage"] == [[3, 2], [2, 1]]
    assert (layout["schedule"], layout["virtual_pipeline_parallel_size"]) == ("interleaved_1f1b", 2)
    with pytest.raises(ConfigError, match="it has 3 segments, which the 2 pipeline stages must divide"):
        small(tmp_path, "--is-hybrid-model --hybrid-layer-pattern 'M-M|*-|M-*' --pipeline-model-parallel-size 2")


def test_prediction_modules_of_a_hybrid_stand_behind_slashes(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    pattern = "'M-M*|M-M-/*-/*-' --pipeline-model-parallel-size 2 --mtp-num-layers 2"
    path.write_text(f"{SMALL} --is-hybrid-model --hybrid-layer-pattern {pattern}", encoding="utf-8")
    found = read(path)
    assert found.content["model"]["layer_types"].count("mamba2") == 4
    assert found.content["model"]["num_mtp_layers"] == 2
    assert found.content["parallelism"]["layers_per_stage"] == [[4], [4]]
    assert any("prediction modules (*-/*-) are predicted as the model's last layer" in note for note in found.notes)
