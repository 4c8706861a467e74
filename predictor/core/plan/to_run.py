"""Convert a checked configuration to a run; check that its values agree with each other."""

from __future__ import annotations

from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import LARGEST_RUN_GPUS, LARGEST_SLOTS, must_divide
from predictor.core.blocks.mixers import Mixer
from predictor.core.checks.adapters import check_lora
from predictor.core.checks.kernels import check_fp8_attention, check_kernels
from predictor.core.checks.layout import Split, check_chunks, check_expert_parallel, split_of
from predictor.core.checks.offloading import check_chunk_layers
from predictor.core.checks.training import check_optimizer, check_recomputation, check_reference, with_lengths
from predictor.core.plan.model import transformer
from predictor.core.plan.of_training import adapters, conditions_of, host_update, with_routing
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.section import values_of
from predictor.core.schema.sections import RunConfig, TrainingSection
from predictor.core.timeline.allowed_sizes import check
from predictor.core.timeline.schedules import IN_GROUPS, SCHEDULES, V_CHUNKS
from predictor.core.transforms.compilation import compiled_model
from predictor.core.workload.layout import RANK_ORDER, Layout, LayoutKeys
from predictor.core.workload.parallelism_keys import ParallelismKeys
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.software import Framework
from predictor.core.workload.switches import Attention, Loss
from predictor.core.workload.training_keys import TrainingKeys
from predictor.core.workload.transformer import Transformer


def micro_batches(config: RunConfig) -> int:
    """Return micro-batches per step and replica.

    Raises:
        ConfigError: the batch is said twice or not at all, or is no multiple of what the replicas take at once.
    """
    training, dp = config.training, config.parallelism.data_parallel_size
    if (training.num_micro_batches is None) == (training.global_batch_size is None):
        raise ConfigError("training needs exactly one of num_micro_batches and global_batch_size")
    if training.num_micro_batches is not None:
        return training.num_micro_batches
    assert training.global_batch_size is not None
    per_round = training.micro_batch_size * dp
    if training.global_batch_size % per_round:
        raise ConfigError(
            f"global_batch_size is {training.global_batch_size}; it must be a multiple of micro_batch_size × "
            f"data_parallel_size, {per_round}"
        )
    return training.global_batch_size // per_round


def _check_tensor_parallel(model: ModelSection, layout: ParallelismSection, ffn_hidden_size: int) -> None:
    tp = layout.tensor_parallel_size
    must_divide("tensor_parallel_size", tp, "num_attention_heads", model.num_attention_heads)
    key_value_heads = model.num_key_value_heads or model.num_attention_heads
    if tp > key_value_heads:
        must_divide("num_key_value_heads", key_value_heads, "tensor_parallel_size", tp)
    else:
        must_divide("tensor_parallel_size", tp, "num_key_value_heads", key_value_heads)
    must_divide("tensor_parallel_size", tp, "ffn_hidden_size", ffn_hidden_size)
    for key in (
        "full_attention",
        "per_layer_inputs",
        "sliding_latent_attention",
        "attention_experts",
        "lm_head_transform",
    ):
        if getattr(model, key) and tp > 1:
            raise ConfigError(f"tensor_parallel_size is {tp} with model.{key}, which is not modelled; use 1")
    if model.loss is Loss.FUSED_LINEAR and tp > 1:
        raise ConfigError(
            f"tensor_parallel_size is {tp} with model.loss {model.loss}, which multiplies by the whole vocabulary; use "
            f"1 or loss: {Loss.VOCABULARY_PARALLEL}"
        )
    if model.vision is not None:
        must_divide("tensor_parallel_size", tp, "num_attention_heads", model.vision.num_attention_heads)
        must_divide("tensor_parallel_size", tp, "ffn_hidden_size", model.vision.ffn_hidden_size)
    if model.moe is not None:
        etp = layout.expert_tensor_parallel_size
        name, split = ("tensor_parallel_size", tp) if etp is None else ("expert_tensor_parallel_size", etp)
        must_divide(name, split, "expert_ffn_hidden_size", model.moe.expert_ffn_hidden_size)
        must_divide(
            "tensor_parallel_size", tp, "shared_expert_ffn_hidden_size", model.moe.shared_expert_ffn_hidden_size
        )
        if tp > 1 and not layout.sequence_parallel:
            raise ConfigError(
                f"tensor_parallel_size is {tp} with experts; Megatron-LM then needs sequence_parallel: true"
            )


def _check_sequence(model: ModelSection, layout: ParallelismSection) -> None:
    """Check context and sequence parallelism, which split a sample."""
    cp = layout.context_parallel_size
    if cp > 1 and model.attention is not Attention.FLASH:
        raise ConfigError(f"context_parallel_size is {cp}; ring attention needs attention: flash")
    if cp > 1 and model.sliding_window is not None:
        raise ConfigError(f"context_parallel_size is {cp} with a sliding window, which is not modelled; use 1")
    if cp > 1 and model.latent_attention is not None and model.latent_attention.indexer is not None:
        raise ConfigError(f"context_parallel_size is {cp} with an indexer, which is not modelled; use 1")
    if cp > 1 and model.mamba2_beside_attention:
        raise ConfigError(f"context_parallel_size is {cp} with Mamba-2 beside attention, which is not modelled; use 1")
    if cp > 1 and model.vision is not None:
        raise ConfigError(f"context_parallel_size is {cp} with a vision tower, which is not modelled; use 1")
    if cp > 1 and Mixer.CHUNKED in (model.layer_types or ()):
        raise ConfigError(f"context_parallel_size is {cp} with {Mixer.CHUNKED} layers, which is not modelled; use 1")
    if cp > 1:
        parts = 2 * cp if model.causal else cp  # a rank holds a part from the front and a part from the back
        if model.sequence_length % parts:
            raise ConfigError(
                f"context_parallel_size is {cp}; {parts} must divide sequence_length, {model.sequence_length}"
            )
    if layout.sequence_parallel:
        tp, tokens = layout.tensor_parallel_size, model.sequence_length // cp
        must_divide("tensor_parallel_size", tp, "sequence_length", tokens)


def _check_mixers(model: ModelSection, tp: int, cp: int) -> None:
    """Check that tensor- and context-parallel ranks can share out token mixers."""
    for mixer, sizes in model.mixers.items():
        for degree, ranks, splits in (("tensor", tp, sizes.splits_layers), ("context", cp, sizes.splits_samples)):
            if ranks > 1 and not splits:
                raise ConfigError(
                    f"{degree}_parallel_size is {ranks} with {mixer} layers, which is not modelled; use 1"
                )
        sizes.check_split(tp, cp)


def _check_scale(gpus: int, stages: int, num_micro_batches: int) -> None:
    """Refuse products of sizes that are typing errors, and would take minutes to replay."""
    if gpus > LARGEST_RUN_GPUS:
        raise ConfigError(
            f"pipeline (pp) × tensor (mp) × data (dp) parallel sizes make {gpus:,} GPUs; more than "
            f"{LARGEST_RUN_GPUS:,} is taken for a slip"
        )
    if stages * num_micro_batches > LARGEST_SLOTS:
        raise ConfigError(
            f"pipeline_parallel_size (pp) × num_micro_batches (steps_per_update) is {stages * num_micro_batches:,}; "
            f"more than {LARGEST_SLOTS:,} is taken for a slip"
        )


def _num_chunks(layout: ParallelismSection, name: str) -> int:
    """Return the model chunks of every stage."""
    implied = V_CHUNKS if SCHEDULES[name].v_shaped and layout.pipeline_parallel_size > 1 else 1
    said = "virtual_pipeline_parallel_size" in layout.model_fields_set
    return layout.virtual_pipeline_parallel_size if said else implied


def _in_groups(name: str, layout: ParallelismSection) -> str:
    """Return the name of a schedule in groups of micro-batches, where they are not as many as stages.

    Raises:
        ConfigError: the schedule has no groups.
    """
    size = layout.micro_batch_group_size
    if size is None:
        return name
    if name != "interleaved_1f1b":
        raise ConfigError(f"micro_batch_group_size is {size}; schedule {name} has no groups, interleaved_1f1b has")
    return name if size == layout.pipeline_parallel_size else f"{IN_GROUPS}{size}"


def _schedule(layout: ParallelismSection, num_micro_batches: int, model: ModelSection) -> tuple[str, bool, Split]:
    """Return the schedule, whether its messages block, and the split into stages, checked against each other."""
    pp = layout.pipeline_parallel_size
    name: str = layout.schedule or "1f1b"
    split = split_of(layout, model, SCHEDULES[name], _num_chunks(layout, name))
    if layout.schedule is None and split.num_chunks > 1:
        name = "interleaved_1f1b"
    name = _in_groups(name, layout)
    schedule = SCHEDULES[name]
    broken = check(name, pp, num_micro_batches, split.num_chunks)
    if broken is not None:
        raise ConfigError(f"schedule is {name}: {broken}")
    check_chunks(split, layout)
    if layout.blocking_transfers and not schedule.may_block:
        raise ConfigError(f"blocking_transfers is true; {name} needs false: its messages must not wait for each other")
    blocking = schedule.may_block if layout.blocking_transfers is None else layout.blocking_transfers
    return name, blocking, split


def _gradient_reduction(layout: ParallelismSection) -> str:
    """Return the collective that sums gradients, as the ZeRO stage keeps them.

    Raises:
        ConfigError: the other one was asked for.
    """
    if layout.gradient_reduction is None:
        return "reduce_scatter" if layout.zero_stage >= 2 else "all_reduce"
    if layout.gradient_reduction == "all_reduce" and layout.zero_stage >= 2:
        raise ConfigError(
            f"gradient_reduction is all_reduce; zero_stage {layout.zero_stage} keeps only a share, so reduce_scatter"
        )
    if layout.gradient_reduction == "reduce_scatter" and layout.zero_stage == 0:
        raise ConfigError("gradient_reduction is reduce_scatter; zero_stage 0 needs whole gradients, so all_reduce")
    return layout.gradient_reduction


def _layout(parallelism: ParallelismSection, used: int, switched_as: int | None, domain: int | None) -> Layout:
    if sorted(parallelism.rank_order) != sorted(RANK_ORDER):
        raise ConfigError(
            f"rank_order is {list(parallelism.rank_order)}; it must name each of {', '.join(RANK_ORDER)} once"
        )
    return Layout(
        gpus_per_node=used,
        switched_as=switched_as,
        gpus_per_domain=domain,
        **values_of(parallelism, LayoutKeys),
    )


def _used_of_domain(used: int, gpus_per_node: int, gpus_per_domain: int | None) -> int | None:
    """Return the GPUs of an NVLink domain that a run uses where it uses so many per node; None: nodes are domains."""
    if gpus_per_domain is None:
        return None
    whole = gpus_per_domain if used > gpus_per_node else gpus_per_domain * used // gpus_per_node
    return max(used, whole)


def _check_linear_traffic(parallelism: ParallelismSection) -> None:
    """Check that traffic in chunks is of shards of tokens."""
    splits = parallelism.tensor_parallel_size > 1
    if parallelism.overlap_linear_traffic and splits and not parallelism.sequence_parallel:
        raise ConfigError(
            "overlap_linear_traffic is true; it moves shards of tokens, so it needs sequence_parallel: true"
        )


def _with_zero_group(parallelism: ParallelismSection) -> ParallelismSection:
    """Check that groups of ranks that share out states are as large as each other; groups of one share nothing.

    FSDP over one rank is plain data parallelism too. Source: torch distributed/fsdp/_init_utils.py (NO_SHARD where the
    process group has one rank).
    """
    size = parallelism.zero_group_size
    if size is None:
        return parallelism
    if parallelism.zero_stage == 0:
        raise ConfigError(f"zero_group_size is {size}; zero_stage 0 shares out nothing, so leave it out")
    ranks = parallelism.data_parallel_size * parallelism.context_parallel_size
    must_divide("zero_group_size", size, "data_parallel_size × context_parallel_size", ranks)
    unshared = {"zero_stage": 0, "zero_group_size": None, "gradient_reduction": None}
    return parallelism.model_copy(update=unshared) if size == 1 else parallelism


def _model(config: RunConfig) -> Transformer:
    """Return the model, checked against how it is split.

    Raises:
        ConfigError: it cannot be split so, or has not what is to be recomputed.
    """
    check_recomputation(config.training, config.model)
    check_optimizer(config.training, config.parallelism)
    check_kernels(config.training, config.parallelism, config.model)
    check_fp8_attention(config.training, config.model)
    model = transformer(config.model)
    if config.training.compiled:
        model = compiled_model(model)
    model = with_lengths(model, config.training)
    check_lora(model, config.training, config.parallelism)
    check_reference(model, config.training, config.parallelism)
    _check_tensor_parallel(config.model, config.parallelism, model.ffn_hidden_size)
    _check_sequence(config.model, config.parallelism)
    _check_mixers(config.model, config.parallelism.tensor_parallel_size, config.parallelism.context_parallel_size)
    check_expert_parallel(config.model, config.parallelism)
    return model


def _gpus_used(config: RunConfig, gpus_per_node: int, gpus_per_domain: int | None) -> int:
    """Return the GPUs that a configuration uses of a node.

    Raises:
        ConfigError: a node has fewer, and no switch is assumed.
    """
    used = config.parallelism.gpus_per_node or gpus_per_node
    most = max(gpus_per_node, gpus_per_domain or 0)
    if used > most and config.parallelism.intra_node != "switch":
        raise ConfigError(f"gpus_per_node is {used}; {config.system} has {most}")
    return used


def to_run(
    config: RunConfig, gpus_per_node: int, has_switch: bool = False, gpus_per_domain: int | None = None
) -> TrainingRun:
    """Turn a checked configuration into a run.

    Args:
        config: the configuration.
        gpus_per_node: of the system; the default of the configuration's.
        has_switch: a switch connects the system's GPUs of a node, and its collectives are timed so.
        gpus_per_domain: of the system's NVLink domains where they span nodes.

    Raises:
        ConfigError: numbers contradict each other.
    """
    parallelism, training = _with_zero_group(config.parallelism), config.training
    used = _gpus_used(config, gpus_per_node, gpus_per_domain)
    model = _model(config)
    switch_of = gpus_per_node if parallelism.intra_node == "switch" and not has_switch else None
    layout = _layout(parallelism, used, switch_of, _used_of_domain(used, gpus_per_node, gpus_per_domain))
    num_micro_batches = micro_batches(config)
    virtual_stages = parallelism.pipeline_parallel_size * parallelism.virtual_pipeline_parallel_size
    _check_scale(layout.num_gpus, virtual_stages, num_micro_batches)
    schedule, blocking, split = _schedule(parallelism, num_micro_batches, config.model)
    _check_linear_traffic(parallelism)
    check_chunk_layers(config, split)
    return with_routing(
        TrainingRun(
            model=model,
            layout=layout,
            layers_per_stage=split.stages,
            layers_per_chunk=split.chunks,
            num_micro_batches=num_micro_batches,
            schedule=schedule,
            blocking_transfers=blocking,
            host_slowdown=config.host.slowdown,
            conditions=conditions_of(training),
            **values_of(training, TrainingKeys)
            | values_of(parallelism, ParallelismKeys)
            | _resolved(parallelism, training, split),
        )
    )


def _resolved(parallelism: ParallelismSection, training: TrainingSection, split: Split) -> dict[str, Any]:
    """Return keys whose value in a run is decided by others."""
    return {
        "virtual_pipeline_parallel_size": split.num_chunks,
        "sequence_parallel": parallelism.sequence_parallel and parallelism.tensor_parallel_size > 1,
        "gradient_reduction": _gradient_reduction(parallelism),
        "lora": adapters(training, parallelism.zero_stage),
        # A program of one's own is like no published run, as a run of no framework.
        "framework": None if training.framework is Framework.PYTORCH else training.framework,
        **host_update(training),
    }
