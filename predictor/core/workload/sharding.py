"""Data-parallel traffic: gradient reduction, and the gathers and scatters of ZeRO, unit by unit.

A unit is what is gathered and scattered at once: a layer, or the model's beginning and end together (the root). Its
weights are gathered while the unit before it computes, and its gradients scattered while the next one does. So the
root's and the first layer's gather have nothing to hide behind, nor have their scatters: the streams wait for each
other where a micro-batch begins and ends.

Sources: Rajbhandari et al. 2019, arXiv:1910.02054, section 7; Zhao et al. 2023, arXiv:2304.11277; torch
distributed/fsdp/_fully_shard/_fsdp_state.py (_root_pre_forward, _root_post_backward_final_callback: each waits for the
other streams), _fsdp_collectives.py; distributed/fsdp/api.py (all collectives share a stream of NCCL, in order).
"""

from __future__ import annotations

from typing import NamedTuple

from predictor.core.costs.collectives import Topology
from predictor.core.rows import FP32_BYTES
from predictor.core.workload.low_precision import gather_bytes, shard_bytes, wire_bytes
from predictor.core.workload.offload import host_copy
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Recompute
from predictor.core.workload.software import ON_FSDP1, WITH_DEEPSPEED
from predictor.core.workload.tasks import (
    TRAFFIC,
    Overlap,
    Part,
    Passes,
    PassTasks,
    Task,
    collective_task,
    parameter_stream_task,
    scaled,
)

# Passes over the gradients around a reduction, each a read and a write: copy into the bucket, divide by the number of
# replicas, copy back.
# Source: DeepSpeed runtime/zero/stage_1_and_2.py (reduce_independent_p_g_buckets_and_remove_grads, average_tensor).
BUCKET_PASSES = 3 * 2
# Gradients that lie in the bucket already are only divided. Source: Megatron-LM
# core/distributed/param_and_grad_buffer.py, start_grad_sync (gradient_scaling_factor).
IN_PLACE_PASSES = 2
# FSDP1 gathers a unit into one flat tensor whose views are the weights; others copy weights out of what was gathered.
# Source: torch distributed/fsdp/_flat_param.py (_use_unsharded_views), _fully_shard/_fsdp_collectives.py
# (foreach_all_gather_copy_out).
COPY_PASSES = 2
RECOMPUTES_PRODUCTS = (Recompute.FULL, Recompute.PER_OP)


class Groups(NamedTuple):
    """Ranks that share out so many parameters' states, and those that hold the same share.

    Attributes:
        narrow: parameters of them in few bits.
    """

    parameters: int
    sharing: Topology
    replicas: Topology
    narrow: int = 0


def groups_of(run: TrainingRun, parameters: RankParameters) -> list[Groups]:
    """Return parameters by the ranks that share them out, dense ones first."""
    groups = [Groups(parameters.dense, *run.dense_groups, parameters.narrow_dense)]
    if parameters.routed:
        layout, size = run.layout, run.zero_ranks
        routed = layout.expert_sharing_group(size), layout.expert_replica_group(size)
        groups.append(Groups(parameters.routed, *routed, parameters.narrow_routed))
    return groups


def reduces_in_buckets(run: TrainingRun) -> bool:
    """Return whether DeepSpeed's stages 1 and 2 reduce gradients: buckets of all owners, summed on every rank.

    What is called reduce_scatter there sends what an all-reduce does, and a rank keeps its share of the result.
    Source: DeepSpeed runtime/zero/stage_1_and_2.py, allreduce_and_scatter (use_multi_rank_bucket_allreduce, on).
    """
    return run.framework in WITH_DEEPSPEED and run.zero_stage in (1, 2)


def _reduce(run: TrainingRun, elements: int, group: Groups, times: float = 1) -> list[Task]:
    """Return the reduction of so many gradients in one collective, and over the groups that hold the same share."""
    size_bytes = elements * run.gradient_bytes
    if not run.scatters_gradients or reduces_in_buckets(run):
        everyone = _everyone(run, group)
        return collective_task("all_reduce", size_bytes, everyone, Part.DATA_PARALLEL, times)
    share = size_bytes / group.sharing.ranks
    return [
        *collective_task("reduce_scatter", share, group.sharing, Part.DATA_PARALLEL, times),
        *collective_task("all_reduce", share, group.replicas, Part.DATA_PARALLEL, times),
    ]


def _everyone(run: TrainingRun, group: Groups) -> Topology:
    """Return the ranks that hold the same parameters."""
    if group.replicas.ranks == 1:
        return group.sharing
    is_dense = group.sharing.ranks * group.replicas.ranks == run.layout.gradient_ranks
    return run.layout.gradient_group() if is_dense else run.layout.expert_gradient_group()


def reduction_tasks(run: TrainingRun, group: Groups) -> list[Task]:
    """Return the reduction of all gradients of a group, in buckets; nothing in a group of one."""
    parameters = group.parameters
    if group.sharing.ranks * group.replicas.ranks == 1 or not parameters:
        return []
    whole, rest = divmod(parameters, run.gradient_bucket_elements)
    tasks = _reduce(run, run.gradient_bucket_elements, group, whole) if whole else []
    tasks += _reduce(run, rest, group)
    passes = IN_PLACE_PASSES if run.fused_gradient_accumulation else BUCKET_PASSES
    bucketed_bytes = parameters * passes * run.gradient_bytes
    return [*tasks, parameter_stream_task("gradient_buckets", bucketed_bytes, run.call(), Part.DATA_PARALLEL)]


def shares_once(run: TrainingRun) -> bool:
    """Return whether weights are gathered before the first micro-batch and gradients scattered after the last.

    In a pipeline, weights that stay gathered do so for the whole step. Source: torch distributed/pipelining/stage.py,
    backward_maybe_with_nosync (set_reshard_after_backward, set_requires_gradient_sync).
    """
    stays = not run.reshard_after_forward and run.layout.pipeline_parallel_size > 1
    return stays and run.zero_stage >= 3 and run.layout.gradient_ranks > 1


def overlaps_gather(run: TrainingRun) -> bool:
    """Return whether the gathering of a step's weights runs beside its first forward passes."""
    return run.overlap_parameter_gather and (run.prefetch_units > 0 or not shares_once(run))


def gather_tasks(run: TrainingRun, parameters: RankParameters) -> list[Task]:
    """Return the gathering of a unit's weights."""
    tasks: list[Task] = []
    for group in groups_of(run, parameters.held):
        shard = wire_bytes(run, group.parameters, group.narrow) / group.sharing.ranks
        tasks += collective_task("all_gather", shard, group.sharing, Part.DATA_PARALLEL)
    return tasks


def _fetches(run: TrainingRun, parameters: RankParameters) -> list[list[Task]]:
    """Return what brings a unit's weights to a rank, one after the other: its share from the host, then all others'.

    The share travels as it is kept, and is cast on the GPU. Source: torch distributed/fsdp/_fully_shard/_fsdp_param.py,
    all_gather_inputs (offload_to_cpu); DeepSpeed runtime/zero/partition_parameters.py, all_gather_coalesced.
    """
    gathers = gather_tasks(run, parameters)
    if not run.offload_parameters:
        return [gathers]
    groups = groups_of(run, parameters.held)
    share = sum(shard_bytes(run, group.parameters, group.narrow) / group.sharing.ranks for group in groups)
    return [host_copy("weights_from_host", share, run.pinned_offload), gathers]


def weight_copies(run: TrainingRun, parameters: RankParameters) -> list[Task]:
    """Return the kernels around a gather: a rank's fp32 share is narrowed, and weights are copied out or narrowed."""
    wire, size_bytes, parameters = gather_bytes(run), 0.0, parameters.held
    if run.fp32_parameters and wire < FP32_BYTES:
        size_bytes += sum(group.parameters / group.sharing.ranks for group in groups_of(run, parameters)) * (
            FP32_BYTES + wire
        )
    if wire > run.element_bytes:  # torch.autocast narrows every weight where it is used first
        size_bytes += parameters.total * (wire + run.element_bytes)
    elif run.framework not in ON_FSDP1:
        narrow = parameters.narrow.total
        size_bytes += COPY_PASSES * wire_bytes(run, parameters.total, narrow)
    return _streams("weight_copies", size_bytes, run)


def scatter_tasks(run: TrainingRun, parameters: RankParameters) -> list[Task]:
    """Return the reduction of a unit's gradients."""
    tasks: list[Task] = []
    for group in groups_of(run, parameters):
        tasks += _reduce(run, group.parameters, group)
    return tasks


def gradient_copies(run: TrainingRun, parameters: RankParameters) -> list[Task]:
    """Return the copy of a unit's gradients into the buffer that is scattered, in the precision of the reduction."""
    each = run.element_bytes + run.gradient_bytes
    if reduces_in_buckets(run):
        each = BUCKET_PASSES * run.gradient_bytes
    return _streams("gradient_copies", parameters.total * each, run)


def _streams(name: str, size_bytes: float, run: TrainingRun) -> list[Task]:
    return [parameter_stream_task(name, size_bytes, run.call(), Part.SIDE_KERNELS)] if size_bytes else []


def _with(step_pass: PassTasks, copies: list[Task], traffic: list[Task], overlaps: bool) -> PassTasks:
    """Return a pass with copies, and with traffic beside its tasks or behind them."""
    tasks = step_pass.tasks + copies
    if not traffic:
        return PassTasks(tasks, step_pass.overlaps)
    if not overlaps:
        return PassTasks(tasks + traffic, step_pass.overlaps)
    behind = [task for task in tasks if task.part not in TRAFFIC]
    slows = traffic[0].part is not Part.HOST_LINK  # copies between memories take no SMs
    return PassTasks(tasks, [*step_pass.overlaps, Overlap(traffic, behind, slows)])


def _recomputed_share(run: TrainingRun, passes: Passes) -> float:
    """Return the share of a backward pass, by its FLOPs, that recomputes products."""
    if run.recompute not in RECOMPUTES_PRODUCTS or not passes.recompute.tasks:
        return 0.0
    again = passes.recompute.flops
    return again / (again + passes.backward.flops)


def _backward(passes: Passes, traffic: list[Task], overlaps: bool, recomputed: float) -> Passes:
    """Return the passes with traffic beside the backward pass and what is recomputed before it.

    Args:
        passes: of a unit.
        traffic: one of its collectives.
        overlaps: it runs beside the pass; otherwise behind it.
        recomputed: share of the pass that is recomputation, and of the traffic beside it.
    """
    forward, recompute, backward = passes
    if overlaps and recomputed:
        recompute = _with(recompute, [], scaled(traffic, recomputed), overlaps)
        traffic = scaled(traffic, 1.0 - recomputed)
    return Passes(forward, recompute, _with(backward, [], traffic, overlaps))


def _copied(run: TrainingRun, parameters: RankParameters, passes: Passes) -> Passes:
    """Return a unit's passes with the copies around its gathers and scatters."""
    forward, recompute, backward = passes
    gradients = gradient_copies(run, parameters)
    if run.zero_stage >= 3:
        weights = weight_copies(run, parameters)
        forward = PassTasks(forward.tasks + weights, forward.overlaps)
        if run.reshard_after_forward:
            gradients = weights + gradients
    return Passes(forward, recompute, PassTasks(backward.tasks + gradients, backward.overlaps))


def _cast(run: TrainingRun, parameters: RankParameters, passes: Passes) -> Passes:
    """Return a unit's passes with the casts of weights that are whole and kept in fp32 (torch.autocast).

    Every pass narrows each weight once, as autocast remembers its copies; gradients are widened.
    """
    if not run.fp32_parameters or run.element_bytes == FP32_BYTES:
        return passes
    casts = _streams("weight_casts", parameters.held.total * (FP32_BYTES + run.element_bytes), run)
    forward, recompute, backward = passes
    again = casts if run.recompute is Recompute.FULL else []
    return Passes(
        PassTasks(forward.tasks + casts, forward.overlaps),
        PassTasks(recompute.tasks + again, recompute.overlaps),
        PassTasks(backward.tasks + casts, backward.overlaps),
    )


def shares_traffic(run: TrainingRun) -> bool:
    """Return whether passes have traffic of sharded weights or gradients."""
    has_others = run.layout.gradient_ranks > 1 or run.offload_parameters
    return run.zero_stage >= 2 and has_others and not shares_once(run)


def first_differs(run: TrainingRun) -> bool:
    """Return whether a chunk's first layer has traffic beside nothing where other layers hide theirs."""
    return shares_traffic(run) and (
        run.overlap_gradient_reduction or (run.zero_stage >= 3 and run.overlap_parameter_gather)
    )


def sharded(run: TrainingRun, parameters: RankParameters, passes: Passes, is_first: bool = False) -> Passes:
    """Return a layer's passes with the traffic of ZeRO-2 and 3, the copies around it, and casts of fp32 weights.

    A rank keeps only its own share of the gradients, so every micro-batch's are reduced at once.

    Args:
        run: the run.
        parameters: of the layer on one rank.
        passes: with all weights there.
        is_first: of its chunk: nothing runs beside its gather before the forward pass, nor beside its scatter.
    """
    if run.zero_stage < 3:
        passes = _cast(run, parameters, passes)
    if not shares_traffic(run):
        return passes
    forward, recompute, backward = _copied(run, parameters, passes)
    ahead = run.overlap_parameter_gather and run.prefetch_units > 0
    fetches = _fetches(run, parameters) if run.zero_stage >= 3 else []
    for traffic in fetches:
        forward = _with(forward, [], traffic, ahead and not is_first)
    passes = Passes(forward, recompute, backward)
    reduces = run.overlap_gradient_reduction and not is_first
    share = _recomputed_share(run, passes) if ahead or reduces else 0.0
    if run.reshard_after_forward:
        for traffic in fetches:
            passes = _backward(passes, traffic, ahead, share)
    return _backward(passes, scatter_tasks(run, parameters), reduces, share)


def sharded_root(
    run: TrainingRun, parameters: RankParameters, forward: PassTasks, backward: PassTasks, is_end: bool
) -> tuple[PassTasks, PassTasks]:
    """Return the passes of the model's beginning or end with the traffic of ZeRO-2 and 3.

    ZeRO-3 gathers both as the root and scatters them when all is through, beside nothing; the root's weights stay
    gathered from the forward to the backward pass. ZeRO-2 scatters the end's gradients beside the layers' backward
    passes. Source: torch distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init: the root does not reshard after its
    forward pass.
    """
    if not shares_traffic(run):
        return forward, backward
    if run.zero_stage >= 3:
        copies = weight_copies(run, parameters)
        for traffic in _fetches(run, parameters):
            forward, copies = _with(forward, copies, traffic, overlaps=False), []
    copies = gradient_copies(run, parameters)
    hides = is_end and run.zero_stage == 2 and run.overlap_gradient_reduction
    return forward, _with(backward, copies, scatter_tasks(run, parameters), hides)
