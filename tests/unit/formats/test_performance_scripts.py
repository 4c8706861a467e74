"""Command lines of NVIDIA's performance scripts; what their tables hold is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import read_any
from predictor.formats.megatron_bridge.performance import preset_named

COMMAND = (
    "python scripts/performance/run_script.py --model_family_name llama --model_recipe_name llama3_70b --gpu h100 "
    "--num_gpus 64 --gpus_per_node 8 --compute_dtype bf16 --seq_length 8192 -mb 1 -gb 128 -tp 4 -pp 4 -vp 5"
)


def found(tmp_path: Path, command: str = COMMAND, more: str = "") -> Read:
    path = tmp_path / "launch.sh"
    path.write_text(f"{command} {more}\n", encoding="utf-8")
    return read_any(path)


def test_command_that_says_all(tmp_path: Path) -> None:
    read = found(tmp_path)
    layout, training = read.content["parallelism"], read.content["training"]
    assert (read.content["model"]["preset"], read.content["model"]["sequence_length"]) == ("llama3-70b", 8192)
    assert (layout["tensor_parallel_size"], layout["pipeline_parallel_size"], layout["data_parallel_size"]) == (4, 4, 4)
    assert (layout["virtual_pipeline_parallel_size"], layout["fp32_gradients"]) == (5, False)
    assert (training["micro_batch_size"], training["framework"]) == (1, "megatron-bridge")
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("more", "section", "key", "value"),
    [
        ("--compute_dtype fp8_cs", "training", "gemm_recipe", "fp8_tensorwise"),
        ("--compute_dtype fp8_mx", "training", "gemm_recipe", "mxfp8"),
        ("-c fp8 -fr ds", "training", "gemm_recipe", "fp8_delayed"),
        ("--recompute_num_layers 2", "training", "recompute_num_layers", 2),
        ("--cuda_graph_impl transformer_engine --cuda_graph_scope attn", "training", "cuda_graphs", None),
        ("--use_megatron_fsdp True -pp 1 -vp 1", "parallelism", "pipeline_parallel_size", 1),
    ],
)
def test_settings(more: str, section: str, key: str, value: Any, tmp_path: Path) -> None:
    got = found(tmp_path, more=more).content[section][key]
    assert got if value is None else got == value


def test_what_the_tables_hold_is_asked_for(tmp_path: Path) -> None:
    short = (
        "D=${D:-BF16}\nD=${D,,}\npython3 -m scripts.performance.llm.pretrain_llama31_405b --num_gpus $GPUS "
        "--compute_dtype $D"
    )
    read = found(tmp_path, short)
    assert read.unsaid.keys() == {
        "parallelism.tensor_parallel_size",
        "parallelism.pipeline_parallel_size",
        "parallelism.data_parallel_size",
        "training.micro_batch_size",
        "training.global_batch_size",
    }
    assert (read.content["model"]["preset"], read.content["training"]["framework"]) == ("llama3.1-405b", "nemo")
    assert "tensor_parallel_size" not in read.content["parallelism"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--compute_dtype int8", "compute_dtype is int8; expected bf16"),
        ("--unheard_of_parallel 3", "unheard_of_parallel is '3'; of NVIDIA's performance scripts"),
    ],
)
def test_what_is_not_modelled_is_refused(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, more=more)


def test_adapters_that_a_recipe_sizes_are_asked_for(tmp_path: Path) -> None:
    assert "training.lora" in found(tmp_path, more="--task lora").unsaid
    assert "training.lora" not in found(tmp_path, more="--task sft").unsaid
    program = COMMAND.replace("run_script", "llm.finetune_llama3_8b")
    assert "training.lora" in found(tmp_path, program).unsaid
    assert "training.lora" not in found(tmp_path, program, "--finetuning sft").unsaid


@pytest.mark.parametrize(
    ("recipe", "preset"),
    [
        ("llama3_8b", "llama3-8b"),
        ("qwen3_235b_a22b", "qwen3-235b-a22b"),
        ("nemotronh_56b", "nemotron-h-56b"),
        ("nemotron4_340b", "nemotron-4-340b"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("grok1", None),
    ],
)
def test_models_by_the_names_of_recipes(recipe: str, preset: str | None) -> None:
    assert preset_named(recipe) == preset
