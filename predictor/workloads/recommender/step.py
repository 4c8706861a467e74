"""Expand a recommender's run into step tasks: one stage, one block, on the rank that its embeddings keep busy longest.

All ranks meet at the exchange of pooled vectors and at that of their gradients, so the rank that moves the most bytes
of rows decides both passes; the fullest rank, which may be another, decides the memory.
"""

from __future__ import annotations

from math import ceil

from predictor.workloads.frameworks import PYTORCH_DDP
from predictor.workloads.recommender.dense_tasks import Network, network_tasks, streamed_bytes
from predictor.workloads.recommender.embedding_tasks import (
    copy_tasks,
    key_tasks,
    lookup_tasks,
    optimizer_task,
    pooled_exchange,
    reordering,
    replica_steps,
    update_tasks,
)
from predictor.workloads.recommender.memory import activations, fullest, states_of
from predictor.workloads.recommender.run import RecommenderRun
from predictor.workloads.recommender.traffic import Exchange, RankTraffic, all_traffic, exchange
from predictor.workloads.step_tasks import BlockTasks, ChunkTasks, EndTasks, HostWork, StageTasks, StepTasks
from predictor.workloads.tasks import NO_TASKS, Overlap, Part, PassTasks, Task, collective_task, share_of

FP32_BYTES = 4
BUCKET_BYTES = FP32_BYTES * PYTORCH_DDP.bucket_elements()
SCHEDULE = "1f1b"  # of one stage and one micro-batch all are alike
GRAPH_LAUNCHES = 1.0  # a CUDA graph holds all kernels of a pass


def _forward(run: RecommenderRun, network: Network, lookups: list[Task], sent: Exchange, keys: list[Task]) -> PassTasks:
    """Return the forward pass; the keys and the copy of later batches run beside it, or before it."""
    arriving = pooled_exchange(run, sent, backward=False)
    before, after = network.before.forward, network.after.forward
    copies = copy_tasks(run)
    tasks, overlaps = [], []
    if run.overlap_input:
        overlaps += [Overlap(copies, [*lookups, *before, *after]), Overlap(keys, [*lookups, *before, *after])]
    else:
        tasks += copies + keys
    tasks += lookups
    if run.overlap_embeddings:
        overlaps.insert(0, Overlap(arriving, before))
    else:
        tasks += arriving
    return PassTasks([*tasks, *before, *reordering(run, sent, backward=False), *after], overlaps)


def _buckets(run: RecommenderRun, sent: Exchange) -> tuple[list[Task], int]:
    """Return the sum of replicated gradients over all ranks, a collective per bucket, and the number of buckets."""
    size_bytes = run.model.dense_parameters * run.gradient_bytes + FP32_BYTES * sent.replicated
    count = max(1, ceil(size_bytes / BUCKET_BYTES))
    return collective_task("all_reduce", size_bytes / count, run.group(), Part.DATA_PARALLEL, count), count


def _backward(
    run: RecommenderRun, network: Network, updates: list[Task], sent: Exchange, buckets: tuple[list[Task], int]
) -> PassTasks:
    """Return the backward pass: the embeddings' gradients leave as soon as the network above them is through.

    The last bucket of gradients is full when the bottom network is through, and travels beside the update of rows.
    """
    leaving = pooled_exchange(run, sent, backward=True)
    before, after = network.before.backward, network.after.backward
    tasks, overlaps = [*after, *reordering(run, sent, backward=True)], []
    if run.overlap_embeddings:
        overlaps.append(Overlap(leaving, before))
    else:
        tasks += leaving
    reduction, count = buckets
    if run.overlap_gradients and reduction:
        overlaps.append(Overlap(share_of(reduction, 1.0 / count), updates))
        if count > 1:
            overlaps.append(Overlap(share_of(reduction, 1.0 - 1.0 / count), [*after, *before, *updates]))
    return PassTasks([*tasks, *before, *updates], overlaps)


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
    buckets = _buckets(run, sent)
    forward = _forward(run, network, lookup_tasks(busiest), sent, key_tasks(run, sent, busiest))
    backward = _backward(run, network, update_tasks(run, busiest), sent, buckets)
    host = HostWork(
        _launches(run, forward),
        0.0,
        _launches(run, backward),
        takes_turns=False,
    )
    block = BlockTasks(forward, NO_TASKS, backward, [], host, activations(run))
    end = EndTasks([] if run.overlap_gradients else buckets[0], [], _optimizer(run, busiest), [], buckets[1])
    most = fullest(ranks)
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
