"""Rules of offloading to host memory."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.checks.layout import Split
from predictor.core.costs.published import PublishedSystem
from predictor.core.hardware.host_memory import host_memory_gb_per_s
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.workload.run_choices import OffloadModule, Recompute
from predictor.core.workload.software import ON_DEEPSPEED

ACTIVATIONS = ("offload_activation_layers", "offload_activations", "offload_modules")
OF_EXPERTS = (OffloadModule.EXPERT_UP, OffloadModule.MOE_ACTIVATION, OffloadModule.FUSED_EXPERTS)


def check_offloading(training: TrainingSection, system: PublishedSystem) -> None:
    """Refuse offloading where the host's rates are not known.

    Raises:
        ConfigError: the system does not say them.
    """
    hardware = system.hardware
    for key in ("offload_optimizer", "offload_parameters", *ACTIVATIONS):
        if getattr(training, key) and hardware.links.host_gb_per_s is None:
            raise ConfigError(
                f"training.{key} is given; {system.name} does not say how fast its host memory is reached, so set "
                "cluster.host_gb_per_s"
            )
    if training.offload_optimizer and host_memory_gb_per_s(hardware) is None:
        raise ConfigError(
            f"training.offload_optimizer is {training.offload_optimizer:g}; the bandwidth of {system.name}'s host "
            "memory is not known, so set cluster.host_memory_gb_per_s"
        )


def check_chunk_layers(config: RunConfig, split: Split) -> None:
    """Refuse to offload, or to recompute at once, layers that are not there or keep nothing.

    Raises:
        ConfigError: they are not there, or keep nothing.
    """
    training = config.training
    _check_parameters(training, config.parallelism)
    layers = training.offload_activation_layers
    even = [-(-layers // split.num_chunks) for layers in split.stages]
    most = max(even if split.chunks is None else [max(chunks) for chunks in split.chunks])
    for name in ("offload_activation_layers", "recompute_group_layers"):
        if getattr(training, name) > max(1, most):
            raise ConfigError(f"{name} is {getattr(training, name)}; no model chunk has more than {most} layers")
    given = [key for key in ACTIVATIONS if getattr(training, key)]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} are both given; leave one out")
    if (layers or training.offload_modules) and training.recompute is Recompute.FULL:
        key = "offload_activation_layers" if layers else "offload_modules"
        raise ConfigError(
            f"{key} is given with recompute: full, which keeps no activations but its inputs; use selective, or "
            "offload_activations, which offloads those"
        )
    _check_modules(training, config.model.moe is not None)


def _check_parameters(training: TrainingSection, sharding: ParallelismSection) -> None:
    """Refuse weights in host memory that are not sharded, and fp32 weights apart from their states."""
    share = training.offload_optimizer
    if not training.offload_parameters:
        if share and sharding.fp32_parameters:
            raise ConfigError(
                f"offload_optimizer is {share:g} with fp32_parameters, whose fp32 weights the forward pass needs; "
                "FSDP offloads both: set offload_parameters to true, or offload_optimizer to 0"
            )
        return
    if sharding.zero_stage < 3:
        raise ConfigError(
            f"offload_parameters is true; only ZeRO-3 and FSDP keep shards of weights, and zero_stage is "
            f"{sharding.zero_stage}: set it to 3"
        )
    if not sharding.reshard_after_forward:
        raise ConfigError(
            "offload_parameters is true with reshard_after_forward: false, which is not modelled; set that to true"
        )
    if share < 1.0 and (sharding.fp32_parameters or training.framework not in ON_DEEPSPEED):
        raise ConfigError(
            f"offload_parameters is true and offload_optimizer is {share:g}; FSDP updates its weights where they are, "
            "so set offload_optimizer to 1, or framework to deepspeed without fp32_parameters"
        )


def _check_modules(training: TrainingSection, has_experts: bool) -> None:
    """Refuse modules that are not there, or whose inputs others still need on the GPU.

    Source: Megatron-LM, megatron/core/transformer/transformer_config.py, __post_init__.
    """
    named = training.offload_modules
    experts = [module for module in OF_EXPERTS if module in named]
    if experts and not has_experts:
        raise ConfigError(f"offload_modules names {experts[0]}; the model has no experts (model.moe)")
    if OffloadModule.ATTENTION_OUTPUT in named and OffloadModule.CORE_ATTENTION not in named:
        raise ConfigError(
            "offload_modules names attn_proj without core_attn, whose backward pass needs what attn_proj reads; add "
            "core_attn"
        )
    if OffloadModule.FUSED_EXPERTS in named and (len(experts) > 1 or not training.fused_experts):
        raise ConfigError(
            "offload_modules names fused_group_mlp; it is all of fused experts (training.fused_experts), so name it "
            "without expert_fc1 and moe_act"
        )
