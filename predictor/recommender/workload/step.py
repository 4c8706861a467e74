"""Expand a recommender's run into step tasks: one stage, one block, on the rank that its embeddings keep busy longest.

All ranks meet at the exchange of pooled vectors and at that of their gradients, so the rank that moves the most bytes
of rows decides both passes; the fullest rank, which may be another, decides the memory.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from predictor.core.workload.frameworks import PYTORCH_DDP
from predictor.core.workload.step_tasks import BlockTasks, ChunkTasks, EndTasks, HostWork, StageTasks, StepTasks
from predictor.core.workload.tasks import NO_TASKS, Overlap, Part, PassTasks, Task, collective_task, share_of
from predictor.recommender.workload.cache_tasks import transfer_tasks
from predictor.recommender.workload.dense_tasks import streamed_bytes
from predictor.recommender.workload.embedding_tasks import (
    copy_tasks,
    key_index_tasks,
    key_tasks,
    lookup_tasks,
    optimizer_task,
    pooled_exchange,
    reordering,
    replica_steps,
    update_tasks,
)
from predictor.recommender.workload.memory import activations, fullest, states_of
from predictor.recommender.workload.network import Network, network_tasks
from predictor.recommender.workload.run import Engine, RecommenderRun
from predictor.recommender.workload.traffic import Exchange, RankTraffic, all_traffic, exchange

FP32_BYTES = 4
BUCKET_BYTES = FP32_BYTES * PYTORCH_DDP.bucket_elements()
SCHEDULE = "1f1b"  # of one stage and one micro-batch all are alike
GRAPH_LAUNCHES = 1.0  # a CUDA graph holds all kernels of a pass


class InputTasks(NamedTuple):
    """The input of later batches, in the order of TorchRec's pipeline (train_pipelines.py, TrainPipelineSparseDist).

    Attributes:
        first: the copy from the host, and the exchange of how many keys each rank sends.
        then: of the batch after that, the keys themselves.
    """

    first: list[list[Task]]
    then: list[Task]


def _input(run: RecommenderRun, sent: Exchange, busiest: RankTraffic) -> InputTasks:
    keys = key_tasks(run, sent, busiest)
    return InputTasks([tasks for tasks in (copy_tasks(run), keys[:2]) if tasks], keys[2:])


def _forward(run: RecommenderRun, network: Network, lookups: list[Task], sent: Exchange, read: InputTasks) -> PassTasks:
    """Return the forward pass; the input of later batches runs beside it, or its own before it."""
    arriving = pooled_exchange(run, sent, backward=False)
    before, after = network.before.forward, network.after.forward
    tasks: list[Task] = []
    overlaps = []
    if run.overlap_embeddings:
        overlaps.append(Overlap(arriving, before))
    if run.overlap_input:
        overlaps += [Overlap(traffic, [*lookups, *before, *after]) for traffic in read.first]
    else:
        tasks += [task for traffic in read.first for task in traffic] + read.then
    tasks += lookups
    if not run.overlap_embeddings:
        tasks += arriving
    return PassTasks([*tasks, *before, *reordering(run, sent, backward=False), *after], overlaps)


class Reduction(NamedTuple):
    """The sum of replicated gradients over all ranks, a collective per bucket.

    Attributes:
        dense, tables: of the dense network's weights, and of data-parallel tables.
        buckets: of ``dense``.
    """

    dense: list[Task]
    tables: list[Task]
    buckets: int


def gradient_sum(run: RecommenderRun, size_bytes: float, times: int) -> list[Task]:
    """Return the sum of so many bytes over all ranks, ``times`` times.

    On several nodes a graph's is summed within nodes, along rails and within nodes again, as NCCL's NVLSTree does where
    a switch joins a node's GPUs; a ring through all ranks would wait for as many latencies as there are ranks.
    """
    if run.num_nodes == 1 or not run.cuda_graphs:
        return collective_task("all_reduce", size_bytes, run.group(), Part.DATA_PARALLEL, times)
    share = size_bytes / run.node().ranks
    tasks = collective_task("reduce_scatter", share, run.node(), Part.DATA_PARALLEL, times)
    tasks += collective_task("all_reduce", share, run.rail(), Part.DATA_PARALLEL, times)
    return tasks + collective_task("all_gather", share, run.node(), Part.DATA_PARALLEL, times)


def _reduction(run: RecommenderRun, sent: Exchange) -> Reduction:
    """Return buckets as PyTorch's DDP makes them, or HugeCTR's single one with all gradients (grouped_all_reduce)."""
    dense, tables = run.model.dense_parameters * run.gradient_bytes, run.gradient_bytes * sent.replicated
    if run.engine is Engine.HUGECTR:
        return Reduction(gradient_sum(run, dense + tables, 1), [], 1)
    counts = [max(1, ceil(size_bytes / BUCKET_BYTES)) for size_bytes in (dense, tables)]
    return Reduction(
        gradient_sum(run, dense / counts[0], counts[0]), gradient_sum(run, tables / counts[1], counts[1]), counts[0]
    )


def _backward(
    run: RecommenderRun, network: Network, updates: list[Task], sent: Exchange, reduction: Reduction, keys: list[Task]
) -> PassTasks:
    """Return the backward pass: the embeddings' gradients leave as soon as the network above them is through.

    From then on data-parallel tables sum theirs. The last bucket of the dense network's is full when the bottom network
    is through, and travels beside the update of rows.
    """
    leaving = pooled_exchange(run, sent, backward=True)
    before, after = network.before.backward, network.after.backward
    tasks, overlaps = [*after, *reordering(run, sent, backward=True)], []
    if run.overlap_embeddings:
        overlaps.append(Overlap(leaving, before))
    else:
        tasks += leaving
    if run.overlap_gradients:
        last = 1.0 / reduction.buckets
        overlaps.append(Overlap(share_of(reduction.dense, last), updates))
        overlaps.append(Overlap(reduction.tables, [*before, *updates]))
        if reduction.buckets > 1:
            overlaps.append(Overlap(share_of(reduction.dense, 1.0 - last), [*after, *before, *updates]))
    if run.overlap_input:
        overlaps.append(Overlap(keys, [*after, *before, *updates]))
    return PassTasks([*tasks, *before, *updates], [overlap for overlap in overlaps if overlap.traffic])


def _launches(run: RecommenderRun, step_pass: PassTasks) -> float:
    """Return the launches of a pass's thread; those of input that is read ahead belong to another thread."""
    if run.cuda_graphs:
        return GRAPH_LAUNCHES
    return sum(task.launches for task in step_pass.calls() if task.part is not Part.INPUT or not run.overlap_input)


def _optimizer(run: RecommenderRun, traffic: RankTraffic) -> list[Task]:
    """Return the update of replicated weights, and in mixed precision what goes with it."""
    model = run.model
    if model.optimizer is None:
        return []
    dense = model.dense_parameters
    tensors = sum(len(layer.weights(model.inputs_of(layer))) for layer in model.layers)
    tasks = replica_steps(run, traffic)
    if not dense:
        return tasks
    tasks.append(optimizer_task(run, model.optimizer, dense, tensors, Part.OPTIMIZER))
    if run.is_mixed:  # gradients are widened and unscaled, weights narrowed for the next step's products
        moved = dense * (2 * FP32_BYTES + run.gradient_bytes + run.element_bytes)
        tasks.append(streamed_bytes("mixed_precision", moved, run, Part.OPTIMIZER))
    return tasks


def recommender_step(run: RecommenderRun) -> StepTasks:
    """Return all that one training step of a recommender consists of."""
    ranks = all_traffic(run)
    busiest, sent = max(ranks, key=lambda rank: rank.moved_bytes), exchange(run, ranks)
    network = network_tasks(run)
    reduction, read = _reduction(run, sent), _input(run, sent, busiest)
    missing = transfer_tasks(run, busiest)
    lookups = key_index_tasks(run, busiest, backward=False) + missing + lookup_tasks(busiest)
    updates = key_index_tasks(run, busiest, backward=True) + update_tasks(run, busiest)
    forward = _forward(run, network, lookups, sent, read)
    backward = _backward(run, network, updates, sent, reduction, read.then)
    backward = PassTasks(backward.tasks + missing, backward.overlaps)
    host = HostWork(
        _launches(run, forward),
        0.0,
        _launches(run, backward),
        takes_turns=False,
    )
    block = BlockTasks(forward, NO_TASKS, backward, [], host, activations(run))
    late = [] if run.overlap_gradients else reduction.dense + reduction.tables
    end = EndTasks(late, [], _optimizer(run, busiest), [], reduction.buckets)
    most = fullest(run, ranks)
    stage = StageTasks(
        num_layers=len(run.model.layers),
        parameters=round(most.parameters) + run.model.dense_parameters,
        chunks=(ChunkTasks(((block, 1),)),),
        num_messages=0,
        end=end,
        states=states_of(run, most, sent),
    )
    return StepTasks(
        stages=(stage,),
        message=[],
        num_micro_batches=1,
        schedule=SCHEDULE,
        blocking_transfers=False,
        overlap_gradient_reduction=False,
        overlap_parameter_gather=False,
    )
