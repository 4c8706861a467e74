"""YAML of LLaMA-Factory: its stages, its names of a Trainer's arguments, and its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.core.transforms.lora import EVERY_PART
from predictor.formats import detect, read_any

RUN: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "template": "qwen",
    "cutoff_len": 4096,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "bf16": True,
}
LORA = {"finetuning_type": "lora", "lora_rank": 4}
ALL = {"targets": [*EVERY_PART]}


def found(tmp_path: Path, **keys: Any) -> Read:
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump({**RUN, **keys}), encoding="utf-8")
    assert detect(path) == "LLaMA-Factory YAML"
    return read_any(path, 8)


def whole(read: Read) -> dict[str, Any]:
    return read.with_derived(read.content)


@pytest.mark.parametrize(
    ("keys", "section", "key", "value"),
    [
        ({}, "model", "sequence_length", 4096),
        ({"cutoff_len": None}, "model", "sequence_length", 2048),
        ({}, "training", "recompute", "full"),  # unless it is disabled
        ({"stage": "dpo", "pref_beta": 0.1}, "training", "reference_model", "separate"),
        ({"stage": "dpo", **LORA}, "training", "reference_model", "adapters_off"),
        ({"stage": "dpo", "ref_model": "/m", **LORA}, "training", "reference_model", "separate"),
        ({"stage": "kto", **LORA}, "training", "reference_passes", 3),
        ({"stage": "rm", **LORA}, "model", "loss", "score"),
        ({"stage": "dpo", "enable_liger_kernel": True}, "model", "loss", "torch"),
        ({"use_unsloth_gc": True}, "training", "offload_activations", True),
        ({"use_unsloth_gc": True}, "training", "overlap_activation_offload", False),
        ({"use_muon": True}, "training", "optimizer", "muon"),
        ({"use_reentrant_gc": False}, "training", "recompute_stops_early", True),
        ({}, "parallelism", "fp32_parameters", True),  # weights that train are widened
        ({"pure_bf16": True}, "training", "optimizer_state_bytes", 4.0),
        ({"flash_attn": "disabled"}, "model", "attention", "unfused"),
        ({"fp8": True}, "training", "gemm_recipe", "fp8_rowwise"),
        ({"fp8": True, "fp8_backend": "te"}, "training", "gemm_recipe", "fp8_delayed"),
        (LORA, "training", "lora", {"rank": 4, **ALL}),
        ({**LORA, "lora_target": "q_proj,v_proj"}, "training", "lora", {"rank": 4, "targets": ["q", "v"]}),
        ({**LORA, "quantization_bit": 4}, "training", "lora", {"rank": 4, **ALL, "quantized_base": "nf4_double"}),
        ({**LORA, "use_dora": True}, "training", "lora", {"rank": 4, **ALL, "dora": True}),
        ({**LORA, "quantization_bit": 8}, "training", "lora", {"rank": 4, **ALL, "quantized_base": "int8"}),
    ],
)
def test_settings(keys: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert whole(found(tmp_path, **keys))[section][key] == value


@pytest.mark.parametrize("loss", ["orpo", "simpo"])
def test_pairs_without_a_reference(loss: str, tmp_path: Path) -> None:
    alone, pairs = found(tmp_path), found(tmp_path, stage="dpo", pref_loss=loss)
    assert "reference_model" not in pairs.content["training"]
    assert pairs.content["training"]["micro_batch_size"] == 2 * alone.content["training"]["micro_batch_size"]
    assert any(f"{loss}: a sample is 2 sequences" in note for note in pairs.notes)


def test_no_recomputation_where_it_is_disabled(tmp_path: Path) -> None:
    assert "recompute" not in found(tmp_path, disable_gradient_checkpointing=True).content["training"]


@pytest.mark.parametrize(
    ("keys", "is_said"),
    [({"packing": True}, False), ({"stage": "pt"}, False), ({"neat_packing": True}, True), ({}, True)],
)
def test_documents_are_asked_for_where_attention_stays_inside_them(
    keys: dict[str, Any], is_said: bool, tmp_path: Path
) -> None:
    notes = found(tmp_path, **keys).notes
    assert any("document_tokens" in note or "mean_sequence_length" in note for note in notes) is is_said


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stage": "ppo"}, "sft.yaml:8: stage is 'ppo'; modelled are supervised fine-tuning, dpo, ipo"),
        ({"finetuning_type": "freeze"}, "finetuning_type is 'freeze'; only lora and full are modelled"),
        ({**LORA, "quantization_bit": 3}, "quantization_bit is 3; only four bits of bitsandbytes are modelled"),
        ({**LORA, "quantization_bit": 4, "quantization_method": "hqq"}, "only four bits of bitsandbytes are modelled"),
        ({"use_galore": True, "galore_rank": 8}, "use_galore is True; GaLore is not modelled"),
        ({"use_asft_loss": True}, "use_asft_loss is True; a second model's forward pass"),
        ({"resize_vocab": True}, "resize_vocab is True; a vocabulary that is resized for added tokens is not read"),
        ({"do_train": None, "do_predict": True}, "do_predict is True; it trains nothing"),
    ],
)
def test_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **keys)
    assert message in str(caught.value)


def test_a_file_that_exports_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "merge.yaml"
    path.write_text("model_name_or_path: m\ntemplate: qwen\nexport_dir: out\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="export_dir is out; it trains nothing"):
        read_any(path)


def test_version_1(tmp_path: Path) -> None:
    path = tmp_path / "v1.yaml"
    run = {
        "model": "Qwen/Qwen3-4B",
        "train_dataset": "data.yaml",
        "micro_batch_size": 2,
        "global_batch_size": 32,
        "dist_config": {"name": "fsdp2", "dcp_path": None},
    }
    path.write_text(yaml.safe_dump(run), encoding="utf-8")
    content = read_any(path, 8).content
    assert content["model"] == {"preset": "qwen3-4b", "loss": "torch", "sequence_length": 2048}
    assert content["parallelism"]["zero_stage"] == 3
    training = content["training"]
    assert (training["micro_batch_size"], training["global_batch_size"], training["recompute"]) == (2, 32, "full")
    adapters = {"peft_config": {"name": "lora", "r": 16, "lora_alpha": 32}, "quant_config": {"quantization_bit": 4}}
    path.write_text(yaml.safe_dump({**run, "dist_config": None, **adapters}), encoding="utf-8")
    assert read_any(path, 8).content["training"]["lora"] == {"rank": 16, **ALL, "quantized_base": "nf4_double"}
    path.write_text(yaml.safe_dump({**run, "dist_config": {"name": "fsdp2", "cp_size": 2}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="cp_size is 2; DeepSpeed-Ulysses is not modelled"):
        read_any(path, 8)


def test_layouts_of_megatron(tmp_path: Path) -> None:
    keys = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True}
    content = found(tmp_path, **keys, gradient_accumulation_steps=4, recompute_granularity="full").content
    training, parallelism = content["training"], content["parallelism"]
    assert (parallelism["tensor_parallel_size"], parallelism["pipeline_parallel_size"]) == (2, 2)
    assert parallelism["data_parallel_size"] == 2
    assert training["global_batch_size"] == training["micro_batch_size"] * 4 * 2
    assert "lora" not in training
    assert training["recompute"] == "full"
    with pytest.raises(ConfigError, match="stage is dpo; on Megatron-core only sft and pt are modelled"):
        found(tmp_path, stage="dpo", **keys)
    with pytest.raises(ConfigError, match="quantization_bit is 4"):
        found(tmp_path, quantization_bit=4, **keys)


def test_a_file_of_a_chat_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen3-8B\ntemplate: qwen\nfinetuning_type: lora\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="trains nothing"):
        read_any(path, 8)
