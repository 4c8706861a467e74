"""Expand a run into the tasks of every pipeline stage: one micro-batch's passes, and what ends the step."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.catalogue import catalogue
from predictor.costs.operator import Direction
from predictor.workloads.attention import attention_core
from predictor.workloads.layer import backward_pass, forward_pass, layer_operators, sized
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.run import FP32_BYTES, Recompute, TrainingRun
from predictor.workloads.sharding import gathered, reduced, reduction_tasks
from predictor.workloads.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    parameter_stream_task,
    stream_task,
)
from predictor.workloads.transformer import LayerKind

# Per parameter around Adam in mixed precision, sharded: overflow check (widen, isnan, isinf and their reduction: 36),
# norm (widen to fp64 and reduce: 18), flatten and widen the gradient (10), unscale and clip (8), narrow the new
# weights (6). Source: DeepSpeed runtime/zero/stage_1_and_2.py, step(), _has_inf_or_nan, get_grad_norm_direct.
SHARDED_MIXED_PRECISION_BYTES = 36 + 18 + 10 + 8 + 6
# The same, replicated: widen the gradient (6), unscale and check in one kernel (8), norm (4), clip (8), narrow (6).
# Source: Megatron-LM optimizer/optimizer.py, Float16OptimizerWithFloat16Params.step.
REPLICATED_MIXED_PRECISION_BYTES = 6 + 8 + 4 + 8 + 6
# In fp32 only the norm (4) and the clipping (8) remain.
CLIPPING_BYTES = 4 + 8


NOTHING = PassTasks([], [])


@dataclass(frozen=True, slots=True)
class Passes:
    """One micro-batch through one piece of the model."""

    forward: PassTasks
    recompute: PassTasks
    backward: PassTasks


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Tasks of one stage after its last micro-batch."""

    reduction: list[Task]
    optimizer: list[Task]
    gather: list[Task]


def layer_passes(run: TrainingRun, kind: LayerKind) -> Passes:
    """Return the passes of one layer."""
    call = sized(run, kind)
    forward, backward = forward_pass(run, kind), backward_pass(run, kind)
    recompute = NOTHING
    if run.recompute is Recompute.SELECTIVE:
        recompute = attention_core(run.model, layer_operators(run.model, kind), call, FORWARD, run.layout)
    elif run.recompute is Recompute.FULL:
        recompute = PassTasks(list(forward.tasks), list(forward.overlaps))
        if run.partition_activations and not run.sequence_parallel:
            shard = call.tokens * call.hidden_size * call.element_bytes // call.tensor_parallel_size
            group = run.layout.tensor_group()
            recompute.tasks.extend(collective_task("all_gather", shard, group, Part.TENSOR_PARALLEL))
    if run.zero_stage >= 2:
        dense = run.layer_dense_parameters(kind)
        routed = run.layer_expert_parameters() if kind.has_experts else 0
        return Passes(gathered(run, dense, routed, forward), recompute, reduced(run, dense, routed, backward))
    return Passes(forward, recompute, backward)


def loss_tasks(call: LayerCall, direction: Direction) -> list[Task]:
    """Return the loss: 16-bit logits are widened to fp32 first, and their gradient narrowed.

    Source: Megatron-LM ``fp16_lm_cross_entropy`` (default off); GPT-NeoX ``cross_entropy(..., _fp16=False)``.
    """
    logits = call.tokens * call.vocab_per_rank
    loss = operator_task("cross_entropy", call, direction)
    if call.element_bytes == call.logit_bytes:
        return [loss]
    return [stream_task("logits_to_fp32", logits * (call.element_bytes + call.logit_bytes), call), loss]


def _leaves_first_stage(run: TrainingRun) -> list[Task]:
    """Return the sum over the tensor-parallel ranks of what each found in its part of the vocabulary."""
    call, group = run.call(), run.layout.tensor_group()
    activation = call.tokens * call.hidden_size * call.element_bytes
    if run.sequence_parallel:
        shard = activation // call.tensor_parallel_size
        return collective_task("reduce_scatter", shard, group, Part.TENSOR_PARALLEL)
    return collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL)


def _first_edge(run: TrainingRun) -> Passes:
    """Return the embedding."""
    call = run.call()
    activation = call.tokens * call.hidden_size * call.element_bytes
    forward = [operator_task("embedding", call, FORWARD), *_leaves_first_stage(run)]
    backward = [operator_task("embedding", call, BACKWARD)]
    if run.sequence_parallel:
        shard = activation // call.tensor_parallel_size
        backward += collective_task("all_gather", shard, run.layout.tensor_group(), Part.TENSOR_PARALLEL)
    if run.model.position_parameters():
        forward.append(stream_task("position_embedding", activation * ADD_PASSES, call))
        backward.append(stream_task("position_embedding", 2 * activation, call))
    return Passes(PassTasks(forward, []), NOTHING, PassTasks(backward, []))


def _last_edge(run: TrainingRun) -> Passes:
    """Return the last norm, the output projection and the loss."""
    call = run.call()
    activation = call.tokens * call.hidden_size * call.element_bytes
    group = run.layout.tensor_group()
    names = (run.model.normalization.operator, "lm_head")
    forward = [operator_task(name, call, FORWARD) for name in names] + loss_tasks(call, FORWARD)
    backward = [operator_task(name, call, BACKWARD) for name in names] + loss_tasks(call, BACKWARD)
    if run.sequence_parallel:
        shard = activation // call.tensor_parallel_size
        forward += collective_task("all_gather", shard, group, Part.TENSOR_PARALLEL)
        backward += collective_task("reduce_scatter", shard, group, Part.TENSOR_PARALLEL)
        backward += collective_task("all_gather", shard, group, Part.TENSOR_PARALLEL)
    else:
        backward += collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL)
    return Passes(PassTasks(forward, []), NOTHING, PassTasks(backward, []))


def _edge_parameters(run: TrainingRun, is_first: bool, is_end: bool) -> int:
    """Return the parameters of the model's beginning or end on one rank, as a piece gathers them.

    Args:
        run: the run.
        is_first: the piece has the model's beginning, and so a tied embedding already.
        is_end: of the model's end, else of its beginning.
    """
    embedding = run.model.embedding_parameters(run.layout.tensor_parallel_size)
    if not is_end:
        return embedding + run.model.position_parameters()
    return run.model.norm_parameters(1) + (0 if is_first and run.model.tied_embeddings else embedding)


def edge_passes(run: TrainingRun, stage: int, chunk: int = 0) -> Passes:
    """Return what a piece of a stage runs beside its layers.

    The model's first piece has the embedding; its last one a norm, the output projection and the loss. Messages between
    stages travel split over the tensor-parallel group, so a stage gathers its input, and backward its own output and
    the gradient of it; with sequence parallelism activations are split anyway.

    Source: DeepSpeed ``runtime/pipe/engine.py``, ``_exec_forward_pass`` and ``_exec_backward_pass``; Narayanan et al.
    2021, arXiv:2104.04473, section 4.1 (scatter/gather).
    """
    pieces, stages = run.virtual_pipeline_parallel_size, run.layout.pipeline_parallel_size
    is_first = stage == 0 and chunk == 0
    is_last = stage == stages - 1 and chunk == pieces - 1
    forward, backward = NOTHING, NOTHING
    tp = run.layout.tensor_parallel_size
    for wanted, edge in ((is_first, _first_edge), (is_last, _last_edge)):
        if wanted:
            passes = edge(run)
            if run.zero_stage >= 2:
                parameters = _edge_parameters(run, is_first, edge is _last_edge)
                forward += gathered(run, parameters, 0, passes.forward)
                backward += reduced(run, parameters, 0, passes.backward)
            else:
                forward, backward = forward + passes.forward, backward + passes.backward
    if not run.sequence_parallel:
        call, group = run.call(), run.layout.tensor_group()
        share = call.tokens * call.hidden_size * call.element_bytes // tp
        if not is_first:
            forward += PassTasks(collective_task("all_gather", share, group, Part.PIPELINE_PARALLEL), [])
        if not is_last:
            backward += PassTasks(collective_task("all_gather", share, group, Part.PIPELINE_PARALLEL, times=2), [])
    return Passes(forward, NOTHING, backward)


def message_tasks(run: TrainingRun) -> list[Task]:
    """Return one message between neighbouring stages: each tensor-parallel rank sends its share of the activation."""
    if run.layout.pipeline_parallel_size == 1:
        return []
    call = run.call()
    share = call.tokens * call.hidden_size * run.element_bytes // call.tensor_parallel_size
    return collective_task("point_to_point", share, run.layout.pipeline_hop(), Part.PIPELINE_PARALLEL)


def _around_optimizer(run: TrainingRun, parameters: int) -> Task:
    """Return the passes over gradients and weights beside the optimizer's own."""
    if run.element_bytes == FP32_BYTES:
        return parameter_stream_task("gradient_clipping", parameters * CLIPPING_BYTES, run.call(), Part.OPTIMIZER)
    per_parameter = SHARDED_MIXED_PRECISION_BYTES if run.zero_stage >= 1 else REPLICATED_MIXED_PRECISION_BYTES
    return parameter_stream_task("mixed_precision", parameters * per_parameter, run.call(), Part.OPTIMIZER)


def step_end(run: TrainingRun, stage: int) -> StepEnd:
    """Return a stage's gradient reduction, optimizer step and parameter gathering."""
    layout = run.layout
    groups = [(run.dense_parameters(stage), layout.gradient_group())]
    if run.model.experts is not None:
        groups.append((run.expert_parameters(stage), layout.expert_gradient_group()))
    reduction: list[Task] = []
    gather: list[Task] = []
    owned = 0
    for parameters, group in groups:
        share = -(-parameters // group.ranks) if run.zero_stage >= 1 else parameters
        owned += share
        if run.zero_stage < 2:
            reduction += reduction_tasks(run, parameters, group)
        if run.zero_stage in (1, 2):
            gather += collective_task("all_gather", share * run.element_bytes, group, Part.DATA_PARALLEL)
    optimizer = [
        Task("optimizer_step", catalogue()["optimizer_step"], FORWARD, (owned, 1), 1.0, Part.OPTIMIZER, 1),
        _around_optimizer(run, owned),
    ]
    return StepEnd(reduction, optimizer, gather)


def tied_embedding_reduction(run: TrainingRun) -> list[Task]:
    """Return the sum of the first and the last stage's gradients of a shared embedding."""
    if not run.model.tied_embeddings or run.layout.pipeline_parallel_size == 1:
        return []
    size_bytes = run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.gradient_bytes
    return collective_task("all_reduce", size_bytes, run.layout.first_and_last_stage(), Part.DATA_PARALLEL)
