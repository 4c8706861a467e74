"""Blocks of a model chunk beside its layers: embedding, output projection and loss, gathers of split messages."""

from __future__ import annotations

from collections.abc import Callable

from predictor.core.base.remembered import remembered
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.workload.accumulation import accumulating, sums_in_products
from predictor.core.workload.losses import HEAD_GRADIENT
from predictor.core.workload.measured_kernels import input_gradient, weight_gradient
from predictor.core.workload.model_ends import embedding_passes, output_passes, tensor_traffic
from predictor.core.workload.offload import with_host_gradients
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.sharding import sharded_root
from predictor.core.workload.step_tasks import BlockTasks
from predictor.core.workload.tasks import BACKWARD, NO_TASKS, Part, PassTasks, Task, collective_task
from predictor.core.workload.transformer import Transformer
from predictor.core.workload.transformer_memory import edge_memory
from predictor.core.workload.vision_tower import tower_passes

# Gradients of the model's ends, which frozen weights do not have.
WEIGHT_GRADIENTS = ("embedding", "position_embedding", "token_types", HEAD_GRADIENT)


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
