"""Configurations of Oumi and of Unsloth: sections whose keys are a Trainer's under other names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

OUMI = {
    "model": {"model_name": "Qwen/Qwen3-8B", "model_max_length": 8192, "torch_dtype_str": "bfloat16"},
    "data": {"train": {"datasets": [{"dataset_name": "text_sft"}], "pack": True}},
    "training": {"trainer_type": "TRL_SFT", "per_device_train_batch_size": 2, "optimizer": "adamw_torch_fused"},
}
UNSLOTH = {
    "model": "unsloth/Qwen3-8B",
    "training": {"training_type": "lora", "max_seq_length": 4096, "batch_size": 4},
    "lora": {"lora_r": 32, "target_modules": "q_proj,v_proj"},
}


def found(tmp_path: Path, base: dict[str, Any], keys: dict[str, Any]) -> Read:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(merged(base, keys)), encoding="utf-8")
    assert detect(path) == ("Oumi YAML" if base is OUMI else "Unsloth YAML")
    return read_any(path, 8)


def test_oumi_with_replicas(tmp_path: Path) -> None:
    read = found(tmp_path, OUMI, {})
    model, training = read.content["model"], read.content["training"]
    assert (model["preset"], model["sequence_length"]) == ("qwen3-8b", 8192)
    assert (training["micro_batch_size"], training["num_micro_batches"], training["precision"]) == (2, 1, "bf16")
    assert "recompute" not in training
    assert training["optimizer_state_bytes"] == 4  # moments in the weights' own precision
    assert any("samples are packed" in note for note in read.notes)


def test_oumi_on_fsdp_with_adapters(tmp_path: Path) -> None:
    keys = {
        "training": {"use_peft": True, "enable_gradient_checkpointing": True},
        "peft": {"lora_r": 16, "lora_target_modules": ["q_proj", "o_proj"]},
        "fsdp": {"enable_fsdp": True, "sharding_strategy": "SHARD_GRAD_OP", "forward_prefetch": True},
    }
    content = found(tmp_path, OUMI, keys).content
    assert content["training"]["lora"] == {"rank": 16, "targets": ["q", "attention_output"]}
    assert (content["training"]["recompute"], content["parallelism"]["zero_stage"]) == ("full", 3)
    assert content["parallelism"]["reshard_after_forward"] is False


def test_oumi_on_deepspeed(tmp_path: Path) -> None:
    keys = {
        "training": {"mixed_precision_dtype": "BF16"},
        "deepspeed": {"enable_deepspeed": True, "zero_stage": "ZERO_2", "overlap_comm": True},
    }
    content = found(tmp_path, OUMI, keys).content
    assert (content["training"]["framework"], content["parallelism"]["zero_stage"]) == ("deepspeed", 2)
    assert content["parallelism"]["overlap_gradient_reduction"] is True


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training": {"trainer_type": "TRL_GRPO"}}, "training.trainer_type is 'TRL_GRPO'"),
        ({"model": {"freeze_layers": ["visual"]}}, "model.freeze_layers is"),
        ({"training": {"micro_batches": 2}}, "training.micro_batches is 2; of Oumi it is not known here"),
    ],
)
def test_what_oumi_s_files_ask_for_in_vain(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, OUMI, keys)


def test_oumi_s_preference_learning(tmp_path: Path) -> None:
    training = found(tmp_path, OUMI, {"training": {"trainer_type": "TRL_DPO"}}).content["training"]
    assert (training["micro_batch_size"], training["reference_model"]) == (4, "separate")


def test_unsloth_with_adapters(tmp_path: Path) -> None:
    read = found(tmp_path, UNSLOTH, {})
    training = read.content["training"]
    assert training["lora"] == {"rank": 32, "targets": ["q", "v"], "quantized_base": True}
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (4, 4)
    assert (training["precision"], training["recompute"]) == ("bf16", "full")
    assert read.content["model"]["loss"] == "fused_linear"
    assert any("kernels are predicted as Liger's" in note for note in read.notes)
    assert (training["offload_activations"], training["overlap_activation_offload"]) == (True, False)
    assert "recompute_stops_early" not in training


def test_unsloth_on_all_weights(tmp_path: Path) -> None:
    keys = {"training": {"training_type": "full", "gradient_checkpointing": "none", "optim": "adamw_torch"}}
    training = found(tmp_path, UNSLOTH, keys).content["training"]
    assert "lora" not in training
    assert "recompute" not in training
    assert training["optimizer_state_bytes"] == 4
