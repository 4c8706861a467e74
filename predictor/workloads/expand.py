"""Expand a run into the tasks of every pipeline stage: one micro-batch's passes, and what ends the step."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.costs.catalogue import catalogue
from predictor.costs.collectives import Topology
from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Direction
from predictor.workloads.layer import attention_core, backward_tasks, forward_tasks
from predictor.workloads.run import Recompute, TrainingRun
from predictor.workloads.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    Part,
    Task,
    collective_task,
    operator_task,
    stream_task,
)

FP32_BYTES = 4
# Passes over the gradients around a reduction, each a read and a write: copy into the bucket, divide by the number of
# replicas, copy back.
# Source: DeepSpeed runtime/zero/stage_1_and_2.py (reduce_independent_p_g_buckets_and_remove_grads, average_tensor).
BUCKET_PASSES = 3 * 2
# Per parameter around Adam in mixed precision, sharded: overflow check (widen, isnan, isinf and their reduction: 36),
# norm (widen to fp64 and reduce: 18), flatten and widen the gradient (10), unscale and clip (8), narrow the new
# weights (6). Source: DeepSpeed runtime/zero/stage_1_and_2.py, step(), _has_inf_or_nan, get_grad_norm_direct.
SHARDED_MIXED_PRECISION_BYTES = 36 + 18 + 10 + 8 + 6
# The same, replicated: widen the gradient (6), unscale and check in one kernel (8), norm (4), clip (8), narrow (6).
# Source: Megatron-LM optimizer/optimizer.py, Float16OptimizerWithFloat16Params.step.
REPLICATED_MIXED_PRECISION_BYTES = 6 + 8 + 4 + 8 + 6
# In fp32 only the norm (4) and the clipping (8) remain.
CLIPPING_BYTES = 4 + 8


@dataclass(frozen=True, slots=True)
class Passes:
    """Tasks of one micro-batch through one piece of the model."""

    forward: list[Task]
    recompute: list[Task]
    backward: list[Task]


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Tasks of one stage after its last micro-batch."""

    reduction: list[Task]
    optimizer: list[Task]
    gather: list[Task]


def layer_passes(run: TrainingRun) -> Passes:
    """Return the passes of one layer."""
    call = run.call()
    group = run.layout.tensor_group()
    forward = forward_tasks(run.model, call, group)
    accumulated = 1.0 - 1.0 / run.num_micro_batches
    recompute: list[Task] = []
    if run.recompute is Recompute.SELECTIVE:
        recompute = attention_core(run.model, call, FORWARD)
    elif run.recompute is Recompute.FULL:
        recompute = list(forward)
        if run.partition_activations:
            shard = call.tokens * call.hidden_size * call.element_bytes // call.tensor_parallel_size
            recompute += collective_task("all_gather", shard, group, Part.TENSOR_PARALLEL)
    return Passes(forward, recompute, backward_tasks(run.model, call, group, accumulated))


def loss_tasks(call: LayerCall, direction: Direction) -> list[Task]:
    """Return the loss: 16-bit logits are widened to fp32 first, which doubles every pass over them.

    The cross-entropy tables are of logits in the training precision; frameworks widen them unless told otherwise.
    Source: Megatron-LM ``fp16_lm_cross_entropy`` (default off); GPT-NeoX ``cross_entropy(..., _fp16=False)``.
    """
    logits = call.tokens * call.vocab_per_rank
    loss = operator_task("cross_entropy", call, direction, times=FP32_BYTES / call.element_bytes)
    if call.element_bytes == FP32_BYTES:
        return [loss]
    return [stream_task("logits_to_fp32", logits * (call.element_bytes + FP32_BYTES), call), loss]


def edge_passes(run: TrainingRun, stage: int) -> Passes:
    """Return what a stage runs beside its layers.

    The first has the embedding; the last has a norm, the output projection and the loss. Messages between stages travel
    split over the tensor-parallel group, so a stage gathers its input, and backward its own output and the gradient of
    it.

    Source: DeepSpeed ``runtime/pipe/engine.py``, ``_exec_forward_pass`` and ``_exec_backward_pass``; Narayanan et al.
    2021,
    arXiv:2104.04473, section 4.1 (scatter/gather).
    """
    forward: list[Task] = []
    backward: list[Task] = []
    call = run.call()
    group = run.layout.tensor_group()
    activation = call.tokens * call.hidden_size * call.element_bytes
    if stage == 0:
        forward.append(operator_task("embedding", call, FORWARD))
        backward.append(operator_task("embedding", call, BACKWARD))
        forward += collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL)
        if run.model.position_parameters():
            forward.append(
                stream_task(
                    "position_embedding", call.tokens * call.hidden_size * ADD_PASSES * call.element_bytes, call
                )
            )
            backward.append(stream_task("position_embedding", 2 * activation, call))
    last = run.layout.pipeline_parallel_size - 1
    if stage == last:
        for name in (str(run.model.normalization), "lm_head"):
            forward.append(operator_task(name, call, FORWARD))
            backward.append(operator_task(name, call, BACKWARD))
        forward += loss_tasks(call, FORWARD)
        backward += loss_tasks(call, BACKWARD)
        backward += collective_task("all_reduce", activation, group, Part.TENSOR_PARALLEL)
    share = activation // call.tensor_parallel_size
    if stage > 0:
        forward += collective_task("all_gather", share, group, Part.PIPELINE_PARALLEL)
    if stage < last:
        backward += collective_task("all_gather", share, group, Part.PIPELINE_PARALLEL, times=2)
    return Passes(forward, [], backward)


def transfer_tasks(run: TrainingRun) -> list[Task]:
    """Return one message between neighbouring stages: each tensor-parallel rank sends its share of the activation."""
    if run.layout.pipeline_parallel_size == 1:
        return []
    activation = run.micro_batch_size * run.model.sequence_length * run.model.hidden_size * run.element_bytes
    share = activation // run.layout.tensor_parallel_size
    return collective_task("point_to_point", share, run.layout.pipeline_hop(), Part.PIPELINE_PARALLEL)


def _bucketed(name: str, elements: int, bucket: int, element_bytes: int, group: Topology) -> list[Task]:
    """Return a collective over ``elements`` elements in buckets of at most ``bucket``."""
    whole, rest = divmod(elements, bucket)
    tasks = collective_task(name, bucket * element_bytes, group, Part.DATA_PARALLEL, whole) if whole else []
    return tasks + collective_task(name, rest * element_bytes, group, Part.DATA_PARALLEL)


def _around_optimizer(run: TrainingRun, parameters: int) -> Task:
    """Return the passes over gradients and weights beside the optimizer's own."""
    if run.element_bytes == FP32_BYTES:
        return stream_task("gradient_clipping", parameters * CLIPPING_BYTES, run.call(), part=Part.OPTIMIZER)
    per_parameter = SHARDED_MIXED_PRECISION_BYTES if run.zero_stage >= 1 else REPLICATED_MIXED_PRECISION_BYTES
    return stream_task("mixed_precision", parameters * per_parameter, run.call(), part=Part.OPTIMIZER)


def step_end(run: TrainingRun, stage: int) -> StepEnd:
    """Return a stage's gradient reduction, optimizer step and parameter gathering."""
    parameters = run.stage_parameters(stage)
    replicas = run.layout.data_parallel_size
    group = run.layout.data_group()
    call = run.call()
    reduction: list[Task] = []
    if replicas > 1:
        bucketed_bytes = parameters * BUCKET_PASSES * run.element_bytes
        reduction = _bucketed("all_reduce", parameters, run.gradient_bucket_elements, run.element_bytes, group)
        reduction.append(stream_task("gradient_buckets", bucketed_bytes, call, part=Part.DATA_PARALLEL))
    owned = -(-parameters // replicas) if run.zero_stage >= 1 else parameters
    optimizer = [
        Task("optimizer_step", catalogue()["optimizer_step"], FORWARD, (owned, 1), 1.0, Part.OPTIMIZER, 1),
        _around_optimizer(run, owned),
    ]
    gather = (
        collective_task("all_gather", owned * run.element_bytes, group, Part.DATA_PARALLEL)
        if run.zero_stage >= 1
        else []
    )
    return StepEnd(reduction, optimizer, gather)


def tied_embedding_reduction(run: TrainingRun) -> list[Task]:
    """Return the sum of the first and the last stage's gradients of a shared embedding."""
    if not run.model.tied_embeddings or run.layout.pipeline_parallel_size == 1:
        return []
    size_bytes = run.model.embedding_parameters(run.layout.tensor_parallel_size) * run.element_bytes
    return collective_task("all_reduce", size_bytes, run.layout.first_and_last_stage(), Part.DATA_PARALLEL)
