"""Write a configuration as DeepSpeed's JSON.

Source of names: deepspeedai/DeepSpeed, docs/_pages/config-json.md, docs/_tutorials/autotp-training.md and
deepspeed/runtime/config.py (pipeline.stages). Model, experts' ranks and, without a pipeline, recomputation are the
training code's own.
"""

from __future__ import annotations

import json
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.plan.to_run import micro_batches
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.run_choices import Recompute

# Keys that the file has no place for.
BESIDE = ("model", "training.recompute", "training.framework", "parallelism.expert_parallel_size")


def write(config: RunConfig, num_gpus: int, gpus_per_node: int, version: str) -> str:
    """Return the file's text.

    Args:
        config: a checked configuration.
        num_gpus: of the run.
        gpus_per_node: that it uses of a node.
        version: not told apart.

    Raises:
        ConfigError: DeepSpeed has no keys for a part of the configuration.
    """
    parallel, training = config.parallelism, config.training
    stages = parallel.pipeline_parallel_size
    if training.recompute not in (Recompute.NONE, Recompute.FULL):
        raise ConfigError(f"training.recompute is {training.recompute}; DeepSpeed has none and full")
    content = batch_and_precision(config) | {"zero_optimization": zero_section(config)}
    if parallel.tensor_parallel_size > 1:
        content["tensor_parallel"] = {"autotp_size": parallel.tensor_parallel_size}
    if checkpoints := _checkpoints(training):
        content["activation_checkpointing"] = checkpoints
    if stages > 1:
        interval = int(training.recompute is Recompute.FULL)
        content["pipeline"] = {"stages": stages, "activation_checkpoint_interval": interval}
    return json.dumps(content, indent=2) + "\n"


def batch_and_precision(config: RunConfig) -> dict[str, Any]:
    """Return the keys of the batch and of precisions, which GPT-NeoX's files have too."""
    training, rounds = config.training, micro_batches(config)
    keys: dict[str, Any] = {
        "train_batch_size": training.micro_batch_size * rounds * config.parallelism.data_parallel_size,
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": rounds,
    }
    if training.precision != "fp32":
        keys[training.precision] = {"enabled": True}
    if config.parallelism.fp32_gradients:
        keys["data_types"] = {"grad_accum_dtype": "fp32"}
    return keys


def _checkpoints(training: TrainingSection) -> dict[str, bool]:
    """Return the section on checkpoints of activations."""
    switches = {
        "partition_activations": training.partition_activations,
        "synchronize_checkpoint_boundary": training.synchronize_each_layer,
    }
    return {name: True for name, is_on in switches.items() if is_on}


def zero_section(config: RunConfig) -> dict[str, Any]:
    """Return the section on ZeRO."""
    parallel = config.parallelism
    if parallel.zero_group_size is not None:
        raise ConfigError(
            f"parallelism.zero_group_size is {parallel.zero_group_size}; DeepSpeed 0.19 has no MiCS any more: leave it "
            "out, so that all replicas share the states"
        )
    zero: dict[str, Any] = {"stage": parallel.zero_stage}
    if parallel.zero_stage:
        zero |= {
            "overlap_comm": parallel.overlap_gradient_reduction,
            "reduce_scatter": parallel.gradient_reduction != "all_reduce",
            "reduce_bucket_size": parallel.gradient_bucket_elements,
        }
    return zero
