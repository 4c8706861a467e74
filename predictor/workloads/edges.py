"""What a model chunk runs beside its layers: embedding, output projection and loss, gathers of split messages."""

from __future__ import annotations

from predictor.costs.operator import Direction
from predictor.workloads.fused import fused_loss
from predictor.workloads.layer import weight_gradients
from predictor.workloads.layer_call import LayerCall
from predictor.workloads.run import RankParameters, TrainingRun
from predictor.workloads.sharding import sharded_root
from predictor.workloads.step_tasks import BlockTasks
from predictor.workloads.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    NO_TASKS,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    stream_task,
)
from predictor.workloads.transformer_memory import edge_memory


def loss_tasks(call: LayerCall, direction: Direction, operator: str = "cross_entropy") -> list[Task]:
    """Return the loss: 16-bit logits are widened to fp32 first, and their gradient narrowed.

    Source: Megatron-LM ``fp16_lm_cross_entropy`` (default off); GPT-NeoX ``cross_entropy(..., _fp16=False)``.
    """
    logits = call.tokens * call.vocab_per_rank
    loss = operator_task(operator, call, direction)
    if call.element_bytes == call.logit_bytes:
        return [loss]
    return [stream_task("logits_to_fp32", logits * (call.element_bytes + call.logit_bytes), call), loss]


def _loss(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return the loss as a run computes it; a compiler fuses torch's own."""
    if run.has_fused_loss:
        return [fused_loss(run.call())]
    return loss_tasks(run.call(), direction, run.model.loss.operator)


def _traffic(run: TrainingRun, collective: str, times: float = 1.0, part: Part = Part.TENSOR_PARALLEL) -> list[Task]:
    """Return a collective of the tensor-parallel group over one activation; all but all-reduce take a rank's share."""
    call = run.call()
    size_bytes = call.tokens * call.hidden_size * call.element_bytes
    if collective != "all_reduce":
        size_bytes //= call.tensor_parallel_size
    return collective_task(collective, size_bytes, run.layout.tensor_group(), part, times)


def _embedding(run: TrainingRun) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the model's beginning: each rank looks up its part of the vocabulary."""
    call = run.call()
    forward, backward = ([operator_task("embedding", call, direction)] for direction in (FORWARD, BACKWARD))
    forward += _traffic(run, "reduce_scatter" if run.sequence_parallel else "all_reduce")
    if run.sequence_parallel:
        backward += _traffic(run, "all_gather")
    if run.model.position_parameters():
        activation = call.tokens * call.hidden_size * call.element_bytes
        forward.append(stream_task("position_embedding", activation * ADD_PASSES, call))
        backward.append(stream_task("position_embedding", 2 * activation, call))
    return PassTasks(forward, []), PassTasks(backward, [])


def _output(run: TrainingRun) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the model's end: the last norm, the output projection and the loss."""
    call = run.call()
    names = (run.model.normalization.operator, "lm_head")
    forward, backward = (
        [operator_task(name, call, direction) for name in names] + _loss(run, direction)
        for direction in (FORWARD, BACKWARD)
    )
    if run.sequence_parallel:
        forward += _traffic(run, "all_gather")
        backward += _traffic(run, "reduce_scatter") + _traffic(run, "all_gather")
    else:
        backward += _traffic(run, "all_reduce")
    return PassTasks(forward, []), PassTasks(backward, [])


def _embedding_parameters(run: TrainingRun, is_first: bool) -> int:
    """Return the parameters of the model's beginning on one rank."""
    return run.model.embedding_parameters(run.layout.tensor_parallel_size) + run.model.beginning_parameters()


def _output_parameters(run: TrainingRun, is_first: bool) -> int:
    """Return the parameters of the model's end on one rank; the first chunk has a tied embedding already."""
    tied = is_first and run.model.tied_embeddings
    embedding = 0 if tied else run.model.embedding_parameters(run.layout.tensor_parallel_size)
    return run.model.end_parameters(run.layout.tensor_parallel_size) + embedding


def edge_block(run: TrainingRun, is_first: bool, is_last: bool) -> BlockTasks:
    """Return what a model chunk runs beside its layers, by its place among all chunks of the pipeline.

    The first chunk has the embedding; the last has a norm, the output projection and the loss. Messages between stages
    travel split over the tensor-parallel group, so a chunk gathers its input, and backward its own output and the
    gradient of it; with sequence parallelism activations are split anyway.

    Source: DeepSpeed ``runtime/pipe/engine.py``, ``_exec_forward_pass`` and ``_exec_backward_pass``; Narayanan et al.
    2021, arXiv:2104.04473, section 4.1 (scatter/gather).
    """
    forward = backward = NO_TASKS
    ends = (is_first, _embedding, _embedding_parameters), (is_last, _output, _output_parameters)
    for is_here, passes, parameters in ends:
        if is_here:
            ahead, back = passes(run)
            if run.zero_stage >= 2:
                held = RankParameters(parameters(run, is_first), 0)
                ahead, back = sharded_root(run, held, ahead, back, passes is _output)
            forward, backward = forward + ahead, backward + back
    if not run.sequence_parallel:
        if not is_first:
            forward += PassTasks(_traffic(run, "all_gather", part=Part.PIPELINE_PARALLEL), [])
        if not is_last:
            backward += PassTasks(_traffic(run, "all_gather", 2, Part.PIPELINE_PARALLEL), [])
    weight = weight_gradients(run, backward)
    return BlockTasks(forward, NO_TASKS, backward, weight, None, edge_memory(run, is_first, is_last))


def message_tasks(run: TrainingRun) -> list[Task]:
    """Return one message between neighbouring stages: each tensor-parallel rank sends its share of the activation."""
    if run.layout.pipeline_parallel_size == 1:
        return []
    call = run.call()
    share = call.tokens * call.hidden_size * run.element_bytes // call.tensor_parallel_size
    return collective_task("point_to_point", share, run.layout.pipeline_hop(), Part.PIPELINE_PARALLEL)
