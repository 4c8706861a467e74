"""Blocks of a model chunk beside its layers: embedding, output projection and loss, gathers of split messages."""

from __future__ import annotations

from collections.abc import Callable

from predictor.core.base.remembered import remembered
from predictor.core.costs.operator import Direction
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.accumulation import accumulating, sums_in_products
from predictor.core.workload.losses import HEAD_GRADIENT, head_tasks
from predictor.core.workload.measured_kernels import input_gradient, weight_gradient
from predictor.core.workload.offload import with_host_gradients
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.sharding import sharded_root
from predictor.core.workload.step_tasks import BlockTasks
from predictor.core.workload.tasks import (
    ADD_PASSES,
    BACKWARD,
    FORWARD,
    NO_TASKS,
    Part,
    PassTasks,
    Task,
    collective_task,
    operator_task,
    scaled,
    shaped_task,
    stream_task,
)
from predictor.core.workload.transformer import Transformer
from predictor.core.workload.transformer_memory import edge_memory
from predictor.core.workload.vision_tower import tower_passes

# Gradients of the model's ends, which frozen weights do not have.
WEIGHT_GRADIENTS = ("embedding", "position_embedding", "token_types", HEAD_GRADIENT)


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


def _frozen(model: Transformer, one: PassTasks, gradients: tuple[str, ...]) -> PassTasks:
    """Return a pass without so-named gradients of weights, whose backward products compute none either."""
    tasks = [
        input_gradient(model, task) if task.direction is BACKWARD and task.operator.gradient_operators else task
        for task in one.tasks
        if task.name not in gradients
    ]
    return PassTasks(tasks, one.overlaps)


_PASSES: dict[tuple[object, ...], tuple[PassTasks, PassTasks]] = {}  # of models' ends, shared by runs


def _passes(
    run: TrainingRun, ends: Callable[[TrainingRun], tuple[PassTasks, PassTasks]]
) -> tuple[PassTasks, PassTasks]:
    """Return forward and backward pass of the model's beginning or end."""
    group = run.layout.tensor_group()
    key = ends, run.model.end_sizes, run.call(), group, run.sequence_parallel, run.compiled
    return remembered(_PASSES, key, lambda: ends(run))


def edge_block(run: TrainingRun, is_first: bool, is_last: bool) -> BlockTasks:
    """Return what a model chunk runs beside its layers, by its place among all chunks of the pipeline.

    The first chunk has the embedding; the last has a norm, the output projection and the loss. Messages between stages
    travel split over the tensor-parallel group, so a chunk gathers its input, and backward its own output and the
    gradient of it; with sequence parallelism activations are split anyway.

    Source: DeepSpeed ``runtime/pipe/engine.py``, ``_exec_forward_pass`` and ``_exec_backward_pass``; Narayanan et al.
    2021, arXiv:2104.04473, section 4.1 (scatter/gather).
    """
    forward = backward = NO_TASKS
    if is_first:
        held = run.beginning_parameters()
        forward, backward = sharded_root(run, held, *_passes(run, embedding_passes), is_end=False)
        backward = with_host_gradients(run, held, backward)
    if is_last:
        held = run.ending_parameters(is_first)
        ahead, back = sharded_root(run, held, *_passes(run, output_passes), is_end=True)
        forward, backward = forward + ahead, backward + with_host_gradients(run, held, back)
    if not run.sequence_parallel:
        if not is_first:
            forward += PassTasks(tensor_traffic(run, "all_gather", part=Part.PIPELINE_PARALLEL), [])
        if not is_last:
            backward += PassTasks(tensor_traffic(run, "all_gather", 2, Part.PIPELINE_PARALLEL), [])
    if run.lora is not None and not run.lora.train_embeddings:
        forward = _frozen(run.model, forward, (HEAD_GRADIENT,))
        backward = _frozen(run.model, backward, WEIGHT_GRADIENTS)
    if run.lora is None and sums_in_products(run):
        backward = PassTasks(accumulating(backward.tasks), backward.overlaps)
    if is_first and run.model.vision is not None:
        ahead, back = tower_passes(run)
        forward, backward = ahead + forward, backward + back
    if run.reference_run is not None and (is_first or is_last):
        reference = edge_block(run.reference_run, is_first, is_last).forward
        forward += reference.repeated(run.reference_passes)
    splits = SCHEDULES[run.schedule].splits_backward and run.lora is None
    products = [task for task in backward.tasks if task.operator.gradient_operators]
    weight = [weight_gradient(run.model, task) for task in products] if splits else []
    return BlockTasks(forward, NO_TASKS, backward, weight, None, edge_memory(run, is_first, is_last))


def message_tasks(run: TrainingRun) -> list[Task]:
    """Return one message between neighbouring stages: each tensor-parallel rank sends its share of the activation."""
    if run.layout.pipeline_parallel_size == 1:
        return []
    call = run.call()
    share = call.tokens * call.hidden_size * run.element_bytes // call.tensor_parallel_size
    return collective_task("point_to_point", share, run.layout.pipeline_hop(), Part.PIPELINE_PARALLEL)
