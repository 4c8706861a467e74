"""Configurations of nanotron: sizes, layout, gradients and the split over stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.nanotron import stages

TEXT = """
general: {project: p, run: r, seed: 1}
model:
  dtype: bfloat16
  ddp_bucket_cap_mb: 50
  model_config:
    is_qwen2_config: true
    hidden_size: 1024
    intermediate_size: 4096
    num_attention_heads: 16
    num_hidden_layers: 12
    num_key_value_heads: 4
    vocab_size: 32000
    attention_bias: true
    tie_word_embeddings: true
    _use_doc_masking: false
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW, adam_eps: 1e-8}}
parallelism: {dp: 4, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 8, train_steps: 100}
"""


def found(tmp_path: Path, text: str = TEXT, num_gpus: int | None = None) -> Read:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_any(path, num_gpus)


def test_sizes_layout_and_batch(tmp_path: Path) -> None:
    read = found(tmp_path)
    model, parallelism, training = (read.content[name] for name in ("model", "parallelism", "training"))
    assert (model["num_layers"], model["num_key_value_heads"], model["biases"]) == (12, 4, "qkv")
    assert (model["normalization"], model["loss"], model["tied_embeddings"]) == (
        "fused_rms_norm",
        "vocabulary_parallel",
        True,
    )
    assert (parallelism["tensor_parallel_size"], parallelism["sequence_parallel"]) == (2, True)
    assert (parallelism["zero_stage"], parallelism["gradient_reduction"]) == (1, "reduce_scatter")
    assert (parallelism["fp32_gradients"], parallelism["overlap_tensor_parallel"]) == (True, True)
    assert parallelism["gradient_bucket_elements"] == 50 * 2**20 // 2
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (2, 8)
    assert read.content["budget"] == {"train_tokens": 100 * 2 * 8 * 4 * 2048}
    assert (read.notes, read.unsaid) == ((), {})


@pytest.mark.parametrize(
    ("old", "new", "section", "key", "value"),
    [
        ("REDUCE_SCATTER", "ALL_REDUCE", "parallelism", "sequence_parallel", False),
        ("pp_engine: 1f1b", "pp_engine: afab", "parallelism", "schedule", "all_forward_all_backward"),
        ("pp_engine: 1f1b", "recompute_layer: true", "training", "recompute", "full"),
        ("in_fp32: true", "in_fp32: false", "training", "optimizer_state_bytes", 4),
        ("in_fp32: true", "in_fp32: false", "parallelism", "gradient_reduction", "all_reduce"),
        ("zero_stage: 1", "zero_stage: 0", "parallelism", "gradient_reduction", "all_reduce"),
        ("_use_doc_masking: false", "no_rope_layer: 4", "model", "rotary_layers", [True, True, True, False]),
        ("_use_doc_masking: false", "sliding_window_size: 512", "model", "sliding_window", 512),
        (
            "_use_doc_masking: false",
            "moe_config: {num_experts: 8, top_k: 2, moe_intermediate_size: 512}",
            "model",
            "moe",
            {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 512},
        ),
    ],
)
def test_keys(old: str, new: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert old in TEXT
    assert found(tmp_path, TEXT.replace(old, new)).content[section][key] == value


def test_gpus_of_the_run_settle_the_replicas(tmp_path: Path) -> None:
    assert found(tmp_path, num_gpus=32).content["parallelism"]["data_parallel_size"] == 8


def test_stages_by_the_cost_of_their_blocks(tmp_path: Path) -> None:
    # A layer costs 4 h² + 3 f h = 16.8 M, the output projection 32.8 M, nearly two layers: the first stage ends
    # behind the layer that takes it beyond half of the 234 M (nanotron/models/base.py).
    assert found(tmp_path).content["parallelism"]["layers_per_stage"] == [7, 5]
    assert stages({"num_layers": 4, "hidden_size": 4, "ffn_hidden_size": 8, "vocab_size": 0}, 1) == [4]


def test_starcoder(tmp_path: Path) -> None:
    text = TEXT.replace(
        "is_qwen2_config: true", "is_starcoder2_config: true\n    grouped_query: true\n    num_kv_heads: 2"
    )
    text = text.replace("    attention_bias: true\n", "").replace("    num_key_value_heads: 4\n", "")
    model = found(tmp_path, text.replace("    tie_word_embeddings: true\n", "")).content["model"]
    assert (model["num_key_value_heads"], model["activation"], model["biases"]) == (2, "gelu", True)
    assert (model["normalization"], model["attention_dropout"]) == ("layer_norm", 0.1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("is_qwen2_config", "is_llama4_config", "this family is not modelled; known: is_llama_config"),
        ("name: adamW", "name: muon", "only adamW is modelled"),
        ("zero_stage: 1", "zero_stage: 3", "nanotron has 0 and 1"),
        ("pp_engine: 1f1b", "pp_engine: zbv", "expected 1f1b, afab"),
        ("pp: 2,", "pp: 2, dp_engine: fsdp,", "parallelism.dp_engine is 'fsdp'; of nanotron it is not known here"),
        ("vocab_size: 32000", "vocab_size: 9000000", "which leaves a stage without any"),
        ("attention_bias: true", "fp8: {x: 1}", "not known here"),
    ],
)
def test_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, TEXT.replace(old, new))


def test_degrees_that_do_not_make_the_gpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tp, pp and cp make 4 GPUs; the run has 6"):
        found(tmp_path, num_gpus=6)
