"""Rows of users' own runs and of Megatron-LM's tests: configurations that rows bring, publications, kinds of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from predictor.evidence.published.row import UnexpressedError
from predictor.formats import read_any
from tests.unit.evidence.test_published_tables import ARGUMENTS, OF_FAMILY, step_of


def test_arguments_of_megatrons_tests_are_read_as_a_file_of_them_is(tmp_path: Path) -> None:
    file = tmp_path / "arguments.yaml"
    file.write_text(yaml.safe_dump({name: given == "true" or given for name, given in ARGUMENTS.items()}))
    step = step_of("mcore_golden")
    read = read_any(file, num_gpus=16)
    assert read.content["model"].items() <= step.config["model"].items()
    assert read.content["training"].items() <= step.config["training"].items()
    assert step.config["parallelism"]["data_parallel_size"] == read.content["parallelism"]["data_parallel_size"] == 8
    assert step.peak_counts == "allocated"
    assert step.groups == ("Megatron-LM's tests, small steps", "Megatron-LM's tests, small steps, H100")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "arguments of the run are not stated"),
        ({**ARGUMENTS, "--optimizer": "lion"}, "arguments are refused: arguments: --optimizer is lion"),
        ({key: value for key, value in ARGUMENTS.items() if key != "--merge-file"}, "leave open model.vocab_size"),
    ],
)
def test_arguments_that_are_not_read_are_counted_with_the_readers_reason(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UnexpressedError, match=reason):
        step_of("mcore_golden", arguments_json=json.dumps(given))


def test_a_row_that_brings_its_configuration_is_taken_at_its_word() -> None:
    step = step_of("fresh_trainer", framework="HF Trainer + none")
    assert step.config["training"]["framework"] == "transformers"
    assert step_of("fresh_trainer", framework="a loop of one's own").config["training"]["framework"] == "pytorch"
    assert step.config["model"]["hidden_size"] == 4096
    assert step_of("fresh_trainer", framework="DeepSpeed 0.14").config["training"]["framework"] == "deepspeed"
    assert step.groups == ("trainer, LoRA, bf16", "Users' own runs")
    with pytest.raises(UnexpressedError, match="holds no configuration"):
        step_of("fresh_trainer", expressed_as="")


def test_a_row_that_its_table_calls_unfit_is_left_out() -> None:
    with pytest.raises(UnexpressedError, match="not to average it"):
        step_of("internevo", unfit_for_summary="one reading")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("github:pytorch/torchtitan@abc123:benchmarks/asyncTP.md#L3", "pytorch/torchtitan"),
        ("github:NVIDIA/dgxc-benchmarking@abc (v25.08.02):qwen3/README.md", "NVIDIA/dgxc-benchmarking"),
        ("github:NVIDIA/dgxc-benchmarking (v25.08.02):qwen3/README.md", "NVIDIA/dgxc-benchmarking"),
        (
            "github:NVIDIA/Megatron-LM@d98e:tests/functional_tests/test_cases/x.json",
            "NVIDIA/Megatron-LM, functional tests",
        ),
        ("github:NVIDIA/NeMo@1e10:docs/source/performance/performance_summary.md", "NeMo, performance summary"),
        ("https://docs.nvidia.com/nemo-framework/user-guide/24.09/x.html", "NeMo, performance summary"),
        ("https://gist.github.com/someone/d4cd", "gist.github.com/someone/d4cd"),
        ("a paper, table 5", "a paper, table 5"),
        ("", "internevo"),
    ],
)
def test_rows_of_one_publication_have_one_source(source: str, name: str) -> None:
    assert step_of("internevo", source=source).source == name


def test_training_runs_are_told_from_benchmarks() -> None:
    ordinary = {group for group in OF_FAMILY if step_of(group).ordinary}
    assert ordinary == {
        "bloom_prequel",
        "mcore_ci_small",
        "mcore_golden",
        "fresh_mbridge_cards",
        "fresh_trainer",
    }


def test_a_card_takes_its_batch_from_the_throughput_and_what_no_column_has_from_the_recipe() -> None:
    config = step_of("fresh_mbridge_cards").config
    # 43,690.67 tokens/s of 16 GPUs for 1.5 s are 512 samples of 2,048 tokens, of micro-batches of 2 on 16 replicas.
    assert config["training"]["num_micro_batches"] == 16
    assert config["training"]["cuda_graphs"] == ["moe_router", "moe_preprocess"]
    assert config["parallelism"]["expert_dispatcher"] == "hybridep"
    assert not config["parallelism"]["fp32_gradients"]
    tuned = step_of("fresh_mbridge_cards", task="peft", recipe_ref="qwen3_30b_a3b_peft_4gpu_h100_bf16_config").config
    assert tuned["training"]["lora"]["targets"] == ["qkv", "attention_output"]
    assert tuned["training"]["document_tokens"] == 380
    assert not tuned["parallelism"]["overlap_gradient_reduction"]


def test_degrees_of_a_card_are_those_of_its_command_before_those_of_its_recipe() -> None:
    cells = {"model": "gpt-oss-20b", "recipe_ref": "gpt_oss_20b_pretrain_16gpu_h100_bf16_config", "ep": "1"}
    recipe = step_of("fresh_mbridge_cards", **cells).config["parallelism"]
    degrees = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel_size")
    assert [recipe[key] for key in degrees] == [2, 4, 2, 4]
    command = step_of("fresh_mbridge_cards", **cells, tp="4").config["parallelism"]
    assert [command[key] for key in degrees] == [4, 4, 1, 4]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "a-model-of-nobody"}, "sizes of a-model-of-nobody are not known"),
        ({"global_batch": "33"}, "do not share its global batch"),
        ({"tp": "3"}, "no multiple of the layout"),
    ],
)
def test_cards_that_contradict_themselves_are_counted(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(UnexpressedError, match=reason):
        step_of("fresh_mbridge_cards", **cells)


def test_flags_of_a_test_without_all_arguments_are_those_of_its_notes() -> None:
    cells = {"gpu": "H100-SXM5-80GB", "model": "gpt/made_up", "moe_experts": "", "attention": "unfused", "tp": "2"}
    row = {**cells, "dp": "8", "recompute": "none", "zero_fsdp": "", "precision": "bf16"}
    notes = "made up; flags: use-distributed-optimizer overlap-grad-reduce no-gradient-accumulation-fusion; env A=1"
    with_flags, without = (step_of("mcore_ci_small", **row, notes=given).config for given in (notes, ""))
    keys = ("zero_stage", "overlap_gradient_reduction", "overlap_parameter_gather", "overlap_linear_traffic")
    assert [with_flags["parallelism"][key] for key in keys] == [1, True, False, False]
    assert [without["parallelism"][key] for key in keys] == [0, False, False, False]
    fuses = [config["training"]["fused_gradient_accumulation"] for config in (with_flags, without)]
    assert fuses == [False, True]
    assert with_flags["model"]["attention"] == "fused_softmax"
    assert with_flags["training"]["framework"] == "megatron-lm"


def test_experts_in_a_latent_space_have_its_width() -> None:
    pattern = "hybrid MEME (mamba heads 64 x 64, state 128, moe latent 1024)"
    experts = {"moe_experts": "16", "moe_topk": "2", "moe_ffn": "1024"}
    cells = {"model": "Nemotron_3_made_up", "layers": "4", "layer_pattern": pattern}
    model = step_of("mbridge_pretrain", **experts, **cells).config["model"]
    assert model["moe"]["latent_size"] == 1024
    assert model["layer_types"] == ["mamba2", "none", "mamba2", "none"]
