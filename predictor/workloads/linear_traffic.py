"""Tensor-parallel traffic in chunks beside the products that it feeds or follows.

A gather before a column-parallel product arrives shard by shard, and each shard is multiplied while the next is on its
way; the first is there already. What a row-parallel product makes is scattered in parts while the next part is
computed; the last part has nothing beside it. Backward, gradients arrive in the same way before row-parallel products.

Source: TransformerEngine pytorch/module/base.py, initialize_ub: "ring_exchange" for qkv_fprop, fc1_fprop, proj_dgrad
and fc2_dgrad, "pipeline" with num_splits 4 and num_sm 16 for proj_fprop and fc2_fprop, "bulk" beside whole products
for the others. torch's _symmetric_memory (fused_all_gather_matmul, fused_matmul_reduce_scatter) does the same in as
many chunks as ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.workloads.linear_layers import COLUMN_PARALLEL, ROW_PARALLEL
from predictor.workloads.measured_kernels import input_gradient
from predictor.workloads.tasks import Overlap, PassTasks, Task, scaled, share_of
from predictor.workloads.transformer import Transformer

SCATTER_CHUNKS = 4
# A product beside a scatter is launched for the multiprocessors that the scatter's 16 leave (set_sm_margin): of 132 on
# Hopper; of 108 to 152 on others, a difference of 3 %.
BESIDE_SCATTER = 132 / (132 - 16)


def _in_chunks(task: Task, chunks: int) -> Task:
    """Return a product as ``chunks`` products of fewer rows each."""
    rows, *others = task.shape
    if chunks < 2 or rows % chunks:
        return task
    return task._replace(shape=(rows // chunks, *others), times=task.times * chunks, launches=task.launches * chunks)


def _beside_each(
    products: Sequence[Task], traffic: list[Task], count: float, hidden_share: float, chunks: float
) -> tuple[list[Overlap], list[Task]]:
    """Return traffic spread over products, and what is left where there are more calls of it than products.

    Args:
        products: that it may run beside.
        traffic: of ``count`` sums.
        count: sums of a pass.
        hidden_share: share of a product that traffic can run beside.
        chunks: of the traffic, of which the last waits for the whole product.
    """
    beside = min(count, len(products))
    overlaps = [
        Overlap(
            scaled(traffic, beside / count / len(products)),
            share_of([product], hidden_share),
            buckets=chunks,
        )
        for product in products
    ]
    return overlaps, scaled(traffic, 1.0 - beside / count) if beside < count else []


def forward_in_chunks(tasks: list[Task], sums: list[Task], count: float, ranks: int) -> PassTasks:
    """Return a forward pass with its gathers and scatters in chunks beside its products.

    Args:
        tasks: of the pass, without traffic.
        sums: gathers and scatters of ``count`` sums over the tensor-parallel group.
        count: sums of the pass.
        ranks: of the tensor-parallel group.
    """
    if not sums:
        return PassTasks(tasks, [])
    cut = dict.fromkeys(COLUMN_PARALLEL, ranks) | dict.fromkeys(ROW_PARALLEL, SCATTER_CHUNKS)
    tasks = [_in_chunks(task, cut.get(task.name, 1)) for task in tasks]
    tasks = [task._replace(times=task.times * BESIDE_SCATTER) if task.name in ROW_PARALLEL else task for task in tasks]
    columns = [task for task in tasks if task.name in COLUMN_PARALLEL]
    rows = [task for task in tasks if task.name in ROW_PARALLEL]
    gathers = [task for task in sums if task.name == "all_gather"]
    scatters = [task for task in sums if task.name != "all_gather"]
    arriving, waiting = _beside_each(columns, gathers, count, 1.0 - 1.0 / ranks, float("inf"))
    leaving, left = _beside_each(rows, scatters, count, 1.0, SCATTER_CHUNKS)
    return PassTasks(tasks + waiting + left, arriving + leaving)


def gradients_in_chunks(
    model: Transformer, tasks: list[Task], gathers: list[Task], count: float, ranks: int
) -> PassTasks:
    """Return the gathers of gradients beside the row-parallel products that they feed, and those that wait.

    Args:
        model: of the layer.
        tasks: of the backward pass.
        gathers: of ``count`` gradients.
        count: sums of the pass.
        ranks: of the tensor-parallel group.
    """
    if not gathers:
        return PassTasks([], [])
    rows = [input_gradient(model, task) for task in tasks if task.name in ROW_PARALLEL]
    overlaps, waiting = _beside_each(rows, gathers, count, 1.0 - 1.0 / ranks, float("inf"))
    return PassTasks(waiting, overlaps)
