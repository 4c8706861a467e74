"""Configurations of accelerate: GPUs, precision and the plugins for FSDP, DeepSpeed and Megatron-LM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import load
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

FSDP = {
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}


def found(tmp_path: Path, content: dict[str, Any]) -> Read:
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert detect(path) == "accelerate configuration"
    return read_any(path)


def fsdp(**keys: Any) -> dict[str, Any]:
    return {**FSDP, "fsdp_config": {f"fsdp_{key}": value for key, value in keys.items()}}


def test_fsdp(tmp_path: Path) -> None:
    read = found(tmp_path, FSDP)
    parallelism = read.content["parallelism"]
    assert (parallelism["zero_stage"], parallelism["data_parallel_size"], parallelism["gpus_per_node"]) == (3, 16, 8)
    assert (parallelism["fp32_parameters"], read.content["training"]["precision"]) == (True, "bf16")
    assert set(read.unsaid) == {"training.micro_batch_size", "training.recompute"}


@pytest.mark.parametrize(
    ("content", "section", "key", "value"),
    [
        (fsdp(sharding_strategy=2), "parallelism", "reshard_after_forward", False),
        (fsdp(version=2, reshard_after_forward=False), "parallelism", "reshard_after_forward", False),
        (fsdp(sharding_strategy="HYBRID_SHARD"), "parallelism", "zero_group_size", 8),
        (fsdp(sharding_strategy="NO_SHARD"), "parallelism", "zero_stage", 0),
        (fsdp(activation_checkpointing=True), "training", "recompute", "full"),
        ({**FSDP, "mixed_precision": "no"}, "training", "precision", "fp32"),
        ({**FSDP, "mixed_precision": "fp8"}, "training", "gemm_recipe", "fp8_delayed"),
        ({**FSDP, "distributed_type": "MULTI_GPU"}, "parallelism", "gradient_bucket_elements", 6_553_600),
        ({**FSDP, "parallelism_config": {"parallelism_config_tp_size": 4}}, "parallelism", "data_parallel_size", 4),
        (
            {
                "distributed_type": "MEGATRON_LM",
                "num_processes": 16,
                "megatron_lm_config": {"megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 4},
            },
            "parallelism",
            "data_parallel_size",
            2,
        ),
    ],
)
def test_settings(content: dict[str, Any], section: str, key: str, value: Any, tmp_path: Path) -> None:
    assert found(tmp_path, content).content[section][key] == value


def test_plugin_of_deepspeed_with_a_model(tmp_path: Path) -> None:
    plugin = {"zero_stage": 3, "gradient_accumulation_steps": 4, "offload_optimizer_device": "none"}
    content = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 8}
    read = found(tmp_path, {**content, "deepspeed_config": plugin})
    assert read.content["training"] == {"num_micro_batches": 4, "precision": "bf16"}
    config = tmp_path / "run.yaml"
    config.write_text("system: H100\nfrom: accelerate.yaml\nmodel: llama3-8b\ntraining: {micro_batch_size: 1}\n")
    run = load(config)[0]
    assert (run.zero_stage, run.gradient_bucket_elements, run.num_micro_batches) == (3, 4096 * 4096, 4)


def test_optimizer_on_the_host(tmp_path: Path) -> None:
    content = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 8}
    read = found(tmp_path, {**content, "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"}})
    assert read.content["training"]["offload_optimizer"] == 1.0


def test_weights_on_the_host(tmp_path: Path) -> None:
    content = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 8}
    plugin = {"zero_stage": 3, "offload_param_device": "cpu", "offload_optimizer_device": "cpu"}
    training = found(tmp_path, {**content, "deepspeed_config": plugin}).content["training"]
    assert (training["offload_parameters"], training["offload_optimizer"]) == (True, 1.0)
    of_fsdp = found(tmp_path, fsdp(offload_params=True)).content
    assert (of_fsdp["training"]["offload_parameters"], of_fsdp["training"]["offload_optimizer"]) == (True, 1.0)
    assert of_fsdp["parallelism"]["fp32_parameters"]


def test_file_of_deepspeed_beside_it(tmp_path: Path) -> None:
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps({**sizes, "zero_optimization": {"stage": 2}}), encoding="utf-8")
    content = {"distributed_type": "DEEPSPEED", "num_processes": 8}
    read = found(tmp_path, {**content, "deepspeed_config": {"deepspeed_config_file": "ds.json"}})
    assert read.content["training"] == {"micro_batch_size": 2, "num_micro_batches": 8, "precision": "bf16"}
    assert read.content["parallelism"]["zero_stage"] == 2
    with pytest.raises(ConfigError, match="it is not beside this file"):
        found(tmp_path, {**content, "deepspeed_config": {"deepspeed_config_file": "other.json"}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (fsdp(offload_params=True, sharding_strategy="SHARD_GRAD_OP"), "it is modelled where weights are freed"),
        (fsdp(sharding_strategy="HALF"), "expected FULL_SHARD"),
        (fsdp(unheard_of=1), r"fsdp_config\.fsdp_unheard_of is 1; of accelerate it is not known here"),
        ({**FSDP, "distributed_type": "XLA"}, "expected NO, MULTI_GPU"),
        ({**FSDP, "mixed_precision": "int8"}, "expected no, bf16, fp16, fp8"),
        ({**FSDP, "parallelism_config": {"parallelism_config_tp_size": 3}}, "it must be a multiple of the degrees, 3"),
        (
            {
                "distributed_type": "DEEPSPEED",
                "num_processes": 8,
                "deepspeed_config": {"zero_stage": 3, "offload_param_device": "nvme"},
            },
            "only cpu is modelled",
        ),
    ],
)
def test_what_cannot_be_predicted_is_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, content)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    content = {**fsdp(offload_params=True, reshard_after_forward=False, unheard_of=1), "mixed_precision": "int8"}
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, content)
    assert str(caught.value).startswith("3 problems:")


def test_the_stack_that_runs_is_named(tmp_path: Path) -> None:
    of_fsdp = found(tmp_path, FSDP).content
    assert of_fsdp["training"]["framework"] == "transformers"
    assert of_fsdp["model"] == {"loss": "torch"}  # of logits in fp32, by torch.nn.functional.cross_entropy
    replicas = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 8}
    content = found(tmp_path, replicas).content
    assert content["training"]["framework"] == "transformers"
    assert content["parallelism"]["gradient_bucket_elements"] == 25 * 2**20 // 4
    sharded = {"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {"zero_stage": 2}}
    read = found(tmp_path, {**sharded, "mixed_precision": "bf16"})
    assert read.with_derived(read.content)["training"]["framework"] == "deepspeed"
