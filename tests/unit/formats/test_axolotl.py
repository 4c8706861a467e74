"""YAML of axolotl: its names of a Trainer's arguments, adapters, plugins and layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.core.transforms.lora import EVERY_PART
from predictor.formats import detect, read_any

RUN: dict[str, Any] = {
    "base_model": "NousResearch/Meta-Llama-3-8B",
    "datasets": [{"path": "data.jsonl", "type": "completion"}],
    "sequence_len": 4096,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": "adamw_torch_fused",
    "bf16": "auto",
    "flash_attention": True,
}


def found(tmp_path: Path, **keys: Any) -> Read:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump({**RUN, **keys}), encoding="utf-8")
    assert detect(path) == "axolotl YAML"
    return read_any(path, 8)


def test_sizes(tmp_path: Path) -> None:
    content = found(tmp_path).content
    assert content["model"] == {"preset": "llama3-8b", "loss": "torch", "sequence_length": 4096}
    training = content["training"]
    assert (training["micro_batch_size"], training["num_micro_batches"], training["precision"]) == (2, 4, "bf16")
    assert "recompute" not in training


@pytest.mark.parametrize(
    ("keys", "section", "key", "value"),
    [
        ({"micro_batch_size": None}, "training", "micro_batch_size", 1),
        ({"gradient_accumulation_steps": None, "batch_size": 8}, "training", "num_micro_batches", 4),
        ({"sequence_len": None}, "model", "sequence_length", 512),
        ({"gradient_checkpointing": True}, "training", "recompute", "full"),
        ({"flash_attention": None, "xformers_attention": True}, "training", "attention_kernel", "memory_efficient"),
        (
            {"adapter": "lora", "lora_r": 32, "lora_target_linear": True},
            "training",
            "lora",
            {"rank": 32, "targets": [*EVERY_PART]},
        ),
        (
            {"adapter": "qlora", "lora_r": 8, "lora_target_modules": ["o_proj"]},
            "training",
            "lora",
            {"rank": 8, "targets": ["attention_output"], "quantized_base": "nf4_double"},
        ),
        (
            {"adapter": "lora", "lora_r": 8, "lora_target_modules": ["o_proj"], "peft_use_dora": True},
            "training",
            "lora",
            {"rank": 8, "targets": ["attention_output"], "dora": True},
        ),
        ({"bf16": False, "fp16": True}, "training", "precision", "fp16"),
        ({"bf16": False, "fp16": False}, "training", "precision", "fp32"),
        ({"optimizer": "muon"}, "training", "optimizer", "muon"),
        ({"optimizer": "adamw_bnb_8bit"}, "training", "optimizer_state_bytes", 2 + 8 / 256),
        ({"context_parallel_size": 2}, "parallelism", "data_parallel_size", 4),
        ({"tensor_parallel_size": 4}, "parallelism", "tensor_parallel_size", 4),
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}}, "parallelism", "zero_stage", 3),
        (
            {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}},
            "parallelism",
            "reshard_after_forward",
            False,
        ),
        (
            {"fsdp_config": {"reshard_after_forward": True}, "dp_shard_size": 4, "dp_replicate_size": 2},
            "parallelism",
            "zero_group_size",
            4,
        ),
    ],
)
def test_settings(keys: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, **keys).content[section][key] == value


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rl": "grpo"}, "rl is 'grpo'; modelled are supervised fine-tuning, dpo, ipo"),
        ({"adapter": "ia3"}, "adapter is 'ia3'; only lora and qlora are modelled"),
        ({"optimizer": "lion_32bit"}, "optimizer is 'lion_32bit'; modelled are AdamW, in 32, 8 and 4 bits, and Muon"),
        ({"flash_attention": None, "flex_attention": True}, "attn_implementation is 'flex_attention'"),
        ({"unfrozen_parameters": ["lm_head"]}, "training of a part of the weights is not modelled"),
        ({"fsdp_config": {"offload_params": True, "reshard_after_forward": False}}, "it is modelled where weights are"),
        ({"context_parallel_size": 3}, "the run has 8 GPUs; expected a multiple of its degrees, 3"),
    ],
)
def test_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, **keys)
    assert message in str(caught.value)


def test_kernels_of_liger(tmp_path: Path) -> None:
    read = found(tmp_path, liger_rope=True, liger_glu_activation=True, liger_fused_linear_cross_entropy=True)
    model = read.with_derived({**read.content, "model": {**read.content["model"], "activation": "swiglu"}})["model"]
    assert (model["loss"], model["fused_rope"], model["fused_side_kernels"]) == ("fused_linear", True, True)
    assert "normalization" not in model
    cut = found(tmp_path, plugins=["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"])
    assert cut.content["model"]["loss"] == "fused_linear"


def test_samples_with_images_need_the_model_s_own_file(tmp_path: Path) -> None:
    keys = {"base_model": "google/gemma-3-4b-it", "processor_type": "AutoProcessor"}
    assert "samples have images" in found(tmp_path, **keys).unsaid["model.num_layers"]


def test_deepspeed_beside_it(tmp_path: Path) -> None:
    (tmp_path / "deepspeed_configs").mkdir()
    zero = {"zero_optimization": {"stage": 3, "max_live_parameters": 0, "reduce_bucket_size": "auto"}}
    (tmp_path / "deepspeed_configs" / "zero3.json").write_text(json.dumps(zero), encoding="utf-8")
    read = found(tmp_path, deepspeed="deepspeed_configs/zero3.json")
    assert read.content["parallelism"]["zero_stage"] == 3
    assert read.content["training"]["framework"] == "deepspeed"
    content = read.with_derived({**read.content, "model": {"hidden_size": 64}})
    assert content["parallelism"]["gradient_bucket_elements"] == 64 * 64


ADAPTED = {"adapter": "lora", "lora_r": 8, "lora_target_linear": True}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"gradient_checkpointing": "offload"}, ("full", True, None)),
        ({"gradient_checkpointing": True, "activation_offloading": "legacy"}, ("full", True, False)),
        ({"gradient_checkpointing": True, "activation_offloading": "hidden_states", **ADAPTED}, ("full", True, None)),
        # Beside adapters activations travel instead of running again (core/builders/base.py).
        ({"gradient_checkpointing": True, "activation_offloading": True, **ADAPTED}, (None, True, None)),
        ({"gradient_checkpointing": True, "activation_offloading": False}, ("full", None, None)),
    ],
)
def test_activations_on_the_host(keys: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path) -> None:
    training = found(tmp_path, **keys).content["training"]
    names = ("recompute", "offload_activations", "overlap_activation_offload")
    assert tuple(training.get(name) for name in names) == expected


PARAMETERS = {
    "adapter": "lora",
    "lora_r": 8,
    "lora_target_modules": ["q_proj"],
    "lora_target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
}


def test_adapters_of_parameters_are_sums_but_for_scattermoe(tmp_path: Path) -> None:
    for keys, is_summed in (({}, True), ({"use_sonicmoe": True}, True), ({"use_scattermoe": True}, None)):
        lora = found(tmp_path, **PARAMETERS, **keys).content["training"]["lora"]
        assert lora["targets"] == ["q", "ffn_up", "ffn_down"]
        assert lora.get("expert_weights") is is_summed
    with pytest.raises(ConfigError, match="experts in few bits have no sum with adapters"):
        found(tmp_path, **{**PARAMETERS, "adapter": "qlora"})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rl": "dpo"}, (4, "separate", None)),
        ({"rl": "ipo", **ADAPTED}, (4, "adapters_off", None)),
        ({"rl": "dpo", "rl_beta": 0.1, "rl_adapter_ref_model": True, **ADAPTED}, (4, "separate", None)),
        ({"rl": "dpo", "precompute_ref_log_probs": True}, (4, None, None)),
        ({"rl": "orpo", "orpo_alpha": 0.1}, (4, None, None)),
        ({"rl": "simpo"}, (4, None, None)),
        ({"rl": "kto", **ADAPTED}, (2, "adapters_off", 3)),
        ({"reward_model": True}, (4, None, None)),
    ],
)
def test_preference_learning(keys: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path) -> None:
    content = found(tmp_path, **keys).content
    names = ("micro_batch_size", "reference_model", "reference_passes")
    assert tuple(content["training"].get(name) for name in names) == expected
    assert content["model"]["loss"] == ("score" if "reward_model" in keys else "torch")


def test_deepspeed_as_axolotl_ships_it(tmp_path: Path) -> None:
    read = found(tmp_path, deepspeed="deepspeed_configs/zero1.json")
    assert read.content["parallelism"]["zero_stage"] == 1
    assert any("is not there; it is taken as axolotl 0.19 has it" in note for note in read.notes)
    training = found(tmp_path, deepspeed="deepspeed_configs/zero3_bf16_cpuoffload_all.json").content["training"]
    assert (training["offload_parameters"], training["offload_optimizer"], training["pinned_offload"]) == (
        True,
        1,
        True,
    )


def test_experts_over_ranks_of_data(tmp_path: Path) -> None:
    keys = {"base_model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "expert_parallel_size": 4}
    parallelism = found(tmp_path, **keys).content["parallelism"]
    assert (parallelism["expert_parallel_size"], parallelism["expert_dispatcher"]) == (4, "deepep")
    assert parallelism["data_parallel_size"] == 8
