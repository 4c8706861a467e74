"""The model's beginning and end on one rank: embedding; norm, heads, output projection, loss, further predictions."""

from __future__ import annotations

from predictor.core.costs.operator import Direction
from predictor.core.workload.losses import head_tasks
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    scaled,
    shaped_task,
    stream_task,
)


def tensor_traffic(
    run: TrainingRun, collective: str, times: float = 1.0, part: Part = Part.TENSOR_PARALLEL
) -> list[Task]:
    """Return a collective of the tensor-parallel group over one activation; all but all-reduce take a rank's share."""
    call = run.call()
    size_bytes = call.tokens * call.hidden_size * call.element_bytes
    if collective != "all_reduce":
        size_bytes //= call.tensor_parallel_size
    return collective_task(collective, size_bytes, run.layout.tensor_group(), part, times)


def embedding_passes(run: TrainingRun) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the model's beginning: each rank looks up its part of the vocabulary."""
    call = run.call()
    forward, backward = ([operator_task("embedding", call, direction)] for direction in (FORWARD, BACKWARD))
    forward += tensor_traffic(run, "reduce_scatter" if run.sequence_parallel else "all_reduce")
    if run.sequence_parallel:
        backward += tensor_traffic(run, "all_gather")
    if run.model.position_parameters():
        activation = call.tokens * call.hidden_size * call.element_bytes
        forward.append(stream_task("position_embedding", activation * ADD_PASSES, call))
        backward.append(stream_task("position_embedding", 2 * activation, call))
    if run.model.embedding_norm:
        norm = run.model.norm_operator
        forward.append(operator_task(norm, call, FORWARD)._replace(name="embedding_norm"))
        backward.append(operator_task(norm, call, BACKWARD)._replace(name="embedding_norm"))
    if run.model.encoder is not None and run.model.encoder.token_types:
        activation = call.tokens * call.hidden_size * call.element_bytes
        forward.append(stream_task("token_types", activation * ADD_PASSES, call))
        backward.append(stream_task("token_types", activation, call))
    return PassTasks(forward, []), PassTasks(backward, [])


def _dense_head(run: TrainingRun, direction: Direction, name: str) -> list[Task]:
    """Return a dense layer, its non-linearity and a norm over all tokens."""
    call, hidden = run.call(), run.call().hidden_size
    dense = shaped_task("attention_output", (call.tokens, hidden, hidden), direction)
    gelu = shaped_task("gelu", (call.tokens, hidden), direction)
    norm = operator_task(run.model.norm_operator, call, direction)
    return [task._replace(name=name) for task in (dense, gelu, norm)]


def _heads(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return the dense layers before the output projection, over all tokens; and an encoder's, over first ones."""
    call, encoder = run.call(), run.model.encoder
    tasks = _dense_head(run, direction, "lm_head_transform") if run.model.lm_head_transform else []
    if encoder is None:
        return tasks
    hidden = call.hidden_size
    if encoder.mlm_head:
        tasks += _dense_head(run, direction, "mlm_head")
    if encoder.pooler:
        first = shaped_task("attention_output", (call.micro_batch_size, hidden, hidden), direction)
        tasks.append(first._replace(name="pooler"))
    return tasks


def _further_input(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return what a multi-token prediction module runs before its layer: embedding, two norms, a projection of both.

    Source: Megatron-LM, core/transformer/multi_token_prediction.py (enorm, hnorm, eh_proj, whose output is gathered).
    """
    call, model = run.call(), run.model
    hidden = call.hidden_size
    projection = shaped_task("ffn_up", (call.tokens, 2 * hidden, hidden // call.tensor_parallel_size), direction)
    tasks = [
        operator_task("embedding", call, direction),
        operator_task(model.norm_operator, call, direction, 2.0),
        projection._replace(name="mtp_projection"),
    ]
    return tasks + tensor_traffic(run, "all_gather", 3.0 if run.sequence_parallel else 1.0)


def _end(run: TrainingRun, direction: Direction) -> list[Task]:
    """Return the last norm, heads, output projection and loss, and those of every further predicted token."""
    model, call = run.model, run.call()
    norm = [operator_task(model.norm_operator, call, direction)] if model.final_norm else []
    tasks = norm + _heads(run, direction) + (head_tasks(run, direction) if model.has_lm_head else [])
    if not model.num_mtp_layers:
        return tasks
    further = scaled(tasks + _further_input(run, direction), float(model.num_mtp_layers))
    return tasks + further


def output_passes(run: TrainingRun) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the model's end, with the traffic of every output projection."""
    forward, backward = _end(run, FORWARD), _end(run, BACKWARD)
    times = 1.0 + run.model.num_mtp_layers if run.model.has_lm_head else 0.0
    if run.sequence_parallel:
        forward += tensor_traffic(run, "all_gather", times)
        backward += tensor_traffic(run, "reduce_scatter", times) + tensor_traffic(run, "all_gather", times)
    else:
        backward += tensor_traffic(run, "all_reduce", times)
    return PassTasks(forward, []), PassTasks(backward, [])
