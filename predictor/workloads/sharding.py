"""Data-parallel traffic: gradient reduction, and the gathers and scatters of ZeRO."""

from __future__ import annotations

from predictor.costs.collectives import Topology
from predictor.workloads.run import RankParameters, TrainingRun
from predictor.workloads.tasks import TRAFFIC, Overlap, Part, PassTasks, Task, collective_task, parameter_stream_task

# Passes over the gradients around a reduction, each a read and a write: copy into the bucket, divide by the number of
# replicas, copy back.
# Source: DeepSpeed runtime/zero/stage_1_and_2.py (reduce_independent_p_g_buckets_and_remove_grads, average_tensor).
BUCKET_PASSES = 3 * 2


def _reduce(run: TrainingRun, elements: int, group: Topology, times: int = 1) -> list[Task]:
    """Return the reduction of so many gradients in one collective."""
    size_bytes = elements * run.gradient_bytes
    if run.scatters_gradients:
        return collective_task("reduce_scatter", size_bytes / group.ranks, group, Part.DATA_PARALLEL, times)
    return collective_task("all_reduce", size_bytes, group, Part.DATA_PARALLEL, times)


def reduction_tasks(run: TrainingRun, parameters: int, group: Topology) -> list[Task]:
    """Return the reduction of all gradients of a group, in buckets; nothing in a group of one."""
    if group.ranks == 1 or not parameters:
        return []
    whole, rest = divmod(parameters, run.gradient_bucket_elements)
    tasks = _reduce(run, run.gradient_bucket_elements, group, whole) if whole else []
    tasks += _reduce(run, rest, group)
    bucketed_bytes = parameters * BUCKET_PASSES * run.gradient_bytes
    return [*tasks, parameter_stream_task("gradient_buckets", bucketed_bytes, run.call(), Part.DATA_PARALLEL)]


def _beside(tasks: list[Task], traffic: list[Task], overlaps: bool) -> PassTasks:
    """Return traffic beside tasks, or after them."""
    if not overlaps or not traffic:
        return PassTasks(tasks + traffic, [])
    return PassTasks(tasks, [Overlap(traffic, [task for task in tasks if task.part not in TRAFFIC])])


def _groups(run: TrainingRun, parameters: RankParameters) -> tuple[tuple[int, Topology], ...]:
    """Return parameters with the ranks that share them out, dense ones first."""
    if not parameters.routed:
        return ((parameters.dense, run.layout.gradient_group()),)
    return (parameters.dense, run.layout.gradient_group()), (parameters.routed, run.layout.expert_gradient_group())


def _gathered(run: TrainingRun, parameters: RankParameters, forward: PassTasks) -> PassTasks:
    """Return a forward pass with the gathering of the weights that ZeRO-3 asks for.

    While one layer computes, the next one's weights are gathered, where that overlaps.

    Args:
        run: the run.
        parameters: of the block on one rank.
        forward: its pass with all weights there.

    Source: Rajbhandari et al. 2019, arXiv:1910.02054, section 7; Zhao et al. 2023, arXiv:2304.11277 (FSDP).
    """
    if run.zero_stage < 3:
        return forward
    traffic: list[Task] = []
    for count, group in _groups(run, parameters):
        shard = count * run.element_bytes / group.ranks
        traffic += collective_task("all_gather", shard, group, Part.DATA_PARALLEL)
    beside = _beside(forward.tasks, traffic, run.overlap_parameter_gather)
    return PassTasks(beside.tasks, forward.overlaps + beside.overlaps)


def _reduced(run: TrainingRun, parameters: RankParameters, backward: PassTasks) -> PassTasks:
    """Return a backward pass with what ZeRO-2 and 3 add: gathering again, and scattering each micro-batch's gradients.

    A rank keeps only its own share of the gradients, so every micro-batch's are reduced at once.
    """
    with_weights = _gathered(run, parameters, backward)
    traffic: list[Task] = []
    for count, group in _groups(run, parameters):
        traffic += _reduce(run, count, group)
    beside = _beside(backward.tasks, traffic, run.overlap_gradient_reduction)
    added = beside.tasks[len(backward.tasks) :]
    return PassTasks(with_weights.tasks + added, with_weights.overlaps + beside.overlaps)


def sharded(
    run: TrainingRun, parameters: RankParameters, forward: PassTasks, backward: PassTasks
) -> tuple[PassTasks, PassTasks]:
    """Return a block's forward and backward pass with the data-parallel traffic of ZeRO-2 and 3."""
    if run.zero_stage < 2:
        return forward, backward
    return _gathered(run, parameters, forward), _reduced(run, parameters, backward)
