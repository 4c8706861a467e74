"""ms-swift on Megatron-core: arguments of Megatron-LM beside a hub's model and adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

HEAD = "NPROC_PER_NODE=8 \\\nmegatron sft --model Qwen/Qwen3-8B --max_length 4096 --micro_batch_size 2 "


def found(tmp_path: Path, arguments: str = "", head: str = HEAD, num_gpus: int | None = None) -> Read:
    path = tmp_path / "run.sh"
    path.write_text(f"{head}{arguments} --lr 1e-5 --save_steps 100 --no_save_optim true\n", encoding="utf-8")
    assert detect(path) == "Hugging Face Trainer command"
    return read_any(path, num_gpus)


def test_all_weights(tmp_path: Path) -> None:
    read = found(tmp_path, "--tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --sequence_parallel true")
    model, training, parallelism = read.content["model"], read.content["training"], read.content["parallelism"]
    assert (model["preset"], model["sequence_length"]) == ("qwen3-8b", 4096)
    assert (training["micro_batch_size"], training["global_batch_size"], training["precision"]) == (2, 16, "bf16")
    assert training["recompute"] == "selective"
    assert (parallelism["tensor_parallel_size"], parallelism["pipeline_parallel_size"]) == (2, 2)
    assert (parallelism["data_parallel_size"], parallelism["zero_stage"]) == (2, 1)
    assert "lora" not in training


def test_adapters_beside_joined_projections(tmp_path: Path) -> None:
    training = found(tmp_path, "--tuner_type lora --lora_rank 16 --recompute_granularity none").content["training"]
    assert training["lora"] == {
        "rank": 16,
        "targets": ["qkv", "attention_output", "ffn_up", "ffn_down"],
        "dropout": 0.05,
    }
    assert training["recompute"] == "none"
    chosen = found(tmp_path, "--tuner_type lora --target_modules linear_qkv --lora_dropout 0").content["training"][
        "lora"
    ]
    assert chosen == {"rank": 8, "targets": ["qkv"]}


def test_experts(tmp_path: Path) -> None:
    head = HEAD.replace("Qwen3-8B", "Qwen3-30B-A3B")
    arguments = "--expert_model_parallel_size 4 --recompute_granularity full --recompute_method uniform"
    content = found(tmp_path, f"{arguments} --recompute_num_layers 1 --packing true", head).content
    assert (content["parallelism"]["expert_parallel_size"], content["parallelism"]["data_parallel_size"]) == (4, 8)
    assert content["training"]["recompute"] == "full"


def test_gpus_and_length_are_asked_for(tmp_path: Path) -> None:
    read = found(tmp_path, head="megatron pt --model Qwen/Qwen3-8B ")
    assert {"model.sequence_length", "parallelism.data_parallel_size"} <= read.unsaid.keys()
    assert "sequence_length" not in read.content["model"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--tuner_type lora_llm", "--tuner_type is 'lora_llm'; only lora and full are modelled"),
        ("--tuner_type lora --target_modules vision", "--target_modules is 'vision'; vision: expected linear_qkv"),
        ("--hidden_chunks 4", "--hidden_chunks is 4; of ms-swift it is not known here"),
        ("--optimizer sgd", "optimizer is sgd"),
    ],
)
def test_refused(arguments: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, arguments)
