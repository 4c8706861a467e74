"""Costs of shardings: a run's tables on a published system as a sharding problem.

A part's time is what its lookups and its update add to kernels that look up all tables of a rank, without their
launch. Exchange and reduction hide behind the dense network as in the step itself. The problem's times order plans;
the answer's are predictions of whole steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from predictor.core.costs.published import PublishedSystem
from predictor.core.step.stages import time_tasks
from predictor.core.workload.tasks import Part, Task, collective_task
from predictor.recommender.sharding.problem import Floor, Load, ShardingProblem, Way
from predictor.recommender.workload.embedding import Table
from predictor.recommender.workload.embedding_tasks import key_index_tasks, lookup_tasks, replica_steps, update_tasks
from predictor.recommender.workload.memory import embedding_bytes
from predictor.recommender.workload.network import network_tasks
from predictor.recommender.workload.plan import ShardedTable, Sharding, ShardingPlan
from predictor.recommender.workload.run import Engine, RecommenderRun
from predictor.recommender.workload.step import gradient_sum
from predictor.recommender.workload.traffic import RankTraffic, rank_traffic

COLUMNS_MULTIPLE = 4  # as FBGEMM's kernels need
SMALLEST_BYTES = 1024.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A collective's time over its bytes: linear between points, and nowhere falling.

    Attributes:
        sizes: in bytes, ascending.
        times_us: at these sizes.
    """

    sizes: tuple[float, ...]
    times_us: tuple[float, ...]

    def __call__(self, size_bytes: float) -> float:
        """Return the time of so many bytes; beyond the last point in proportion to it."""
        if size_bytes <= 0.0:
            return 0.0
        after = bisect_left(self.sizes, size_bytes)
        if after == 0:
            return self.times_us[0]
        if after == len(self.sizes):
            return self.times_us[-1] * size_bytes / self.sizes[-1]
        (x0, x1), (y0, y1) = self.sizes[after - 1 : after + 1], self.times_us[after - 1 : after + 1]
        return y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)

    @property
    def least_us_per_byte(self) -> float:
        """Return a slope that the curve stays above."""
        return min(time / size for size, time in zip(self.sizes, self.times_us, strict=True))


def curve(time_us: Callable[[float], float], largest: float) -> Curve:
    """Return a curve through sizes that double, up to the largest."""
    sizes, times = [SMALLEST_BYTES], [time_us(SMALLEST_BYTES)]
    while sizes[-1] < largest:
        sizes.append(2.0 * sizes[-1])
        times.append(max(times[-1], time_us(sizes[-1])))
    return Curve(tuple(sizes), tuple(times))


class TableCosts:
    """Times, bytes and memory of single tables of a run."""

    def __init__(self, run: RecommenderRun, system: PublishedSystem) -> None:
        """Keep what is asked."""
        self.run = run
        self.system = system

    def ways(self, table: Table) -> tuple[Way, ...]:
        """Return the ways to shard a table over the run's ranks."""
        ranks = self.run.num_gpus
        ways = [self._way(ShardedTable(table, Sharding.TABLE_WISE, (0,)))]
        if ranks == 1:
            return tuple(ways)
        every = tuple(range(ranks))
        ways.append(self._way(ShardedTable(table, Sharding.ROW_WISE, every)))
        ways.append(self._way(ShardedTable(table, Sharding.DATA_PARALLEL, every)))
        parts = 2
        while parts <= ranks and table.width % (COLUMNS_MULTIPLE * parts) == 0:
            ways.append(self._way(ShardedTable(table, Sharding.COLUMN_WISE, every[:parts])))
            parts *= 2
        if self.run.num_nodes > 1 and self.run.engine is Engine.HUGECTR:  # the trainer here has no such sharding
            node = self._way(ShardedTable(table, Sharding.TABLE_ROW_WISE, self._nodes[0]))
            ways.append(node._replace(choices=self._nodes))
        return tuple(ways)

    @property
    def _nodes(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of every whole node."""
        size = self.run.gpus_per_node
        return tuple(tuple(range(first, first + size)) for first in range(0, self.run.num_gpus - size + 1, size))

    def _way(self, sharded: ShardedTable) -> Way:
        run = replace(self.run, plan=ShardingPlan(self.run.num_gpus, (sharded,)))
        # Keys of a row-wise table that lie on the busiest of its ranks.
        traffic = max(
            (rank_traffic(run, rank) for rank in self._busiest_candidates(sharded)), key=lambda rank: rank.moved_bytes
        )
        is_replicated = sharded.sharding is Sharding.DATA_PARALLEL
        sent = 0.0 if is_replicated else sum(group.bags * group.width for group in traffic.groups)
        if sharded.sharding is Sharding.ROW_WISE:
            sent *= self._sums_over_exchange
        elif sharded.sharding is Sharding.TABLE_ROW_WISE:
            sent *= self._node_over_exchange
        load = Load(self._busy_us(run, traffic), sent * run.element_bytes, embedding_bytes(run, traffic))
        reduced = run.gradient_bytes * sharded.table.parameters if is_replicated else 0
        return Way(sharded.sharding, len(sharded.ranks), load, float(reduced))

    def _busiest_candidates(self, sharded: ShardedTable) -> Sequence[int]:
        """Return ranks among which the busiest is: the first key's, and another."""
        return sharded.ranks[:2]

    def _busy_us(self, run: RecommenderRun, traffic: RankTraffic) -> float:
        """Return the time of a table's kernels beyond that of kernels with next to nothing to do."""
        tasks = key_index_tasks(run, traffic, backward=True) + lookup_tasks(traffic)
        tasks += update_tasks(run, traffic) + replica_steps(run, traffic)
        return max(0.0, time_tasks(self.system, tasks).us - time_tasks(self.system, list(map(_least, tasks))).us)

    @property
    def _node_over_exchange(self) -> float:
        """Return how much longer sums within a node and then across take than an all-to-all of a rank's whole sums."""
        run, size = self.run, float(self.run.batch_size * 128 * self.run.element_bytes)
        share = size / run.gpus_per_node
        within = collective_task("reduce_scatter", share, run.node(), Part.EMBEDDING_EXCHANGE)
        within += collective_task("all_to_all", share, run.rail(), Part.EMBEDDING_EXCHANGE)
        return time_tasks(self.system, within).us / self.system.collective("all_to_all", size, run.group()).us

    @property
    def _sums_over_exchange(self) -> float:
        """Return how much longer partial sums of a row-wise table take than an all-to-all of as many bytes."""
        run, size = self.run, float(self.run.batch_size * 128 * self.run.element_bytes)
        group, part = run.group(), Part.EMBEDDING_EXCHANGE
        both = collective_task("reduce_scatter", size / run.num_gpus, group, part) + collective_task(
            "all_gather", size / run.num_gpus, group, part
        )
        exchanged = 2.0 * self.system.collective("all_to_all", size, group).us
        return time_tasks(self.system, both).us / exchanged if exchanged else 1.0


def _least(task: Task) -> Task:
    """Return the same kernel with next to nothing to do."""
    width = task.shape[-1:] if task.operator.name == "embedding_bag" else task.shape[2:]
    if task.operator.name in ("embedding_bag", "embedding_update"):
        return task._replace(shape=(1,) * (len(task.shape) - len(width)) + width)
    return task._replace(shape=(1,) * len(task.shape))


def sharding_problem(run: RecommenderRun, system: PublishedSystem, room_bytes: float = inf) -> ShardingProblem:
    """Return the sharding problem of a run; its plan says the tables alone.

    Args:
        run: with any plan.
        system: that answers.
        room_bytes: memory of one GPU for embedding tables, their optimizer states and gradients.
    """
    costs = TableCosts(run, system)
    tables = tuple(sharded.table for sharded in run.plan.tables)
    ways = tuple(costs.ways(table) for table in tables)
    group, network = run.group(), network_tasks(run)
    most = sum(max(way.load.exchanged_bytes for way in options) for options in ways)
    replicas = sum(max(way.reduced_bytes for way in options) for options in ways)
    dense = float(run.model.dense_parameters * run.gradient_bytes)
    exchange = curve(lambda size: system.collective("all_to_all", size, group).us, most)
    reduction = curve(lambda size: time_tasks(system, gradient_sum(run, size, 1)).us, dense + replicas)
    before = [time_tasks(system, tasks).us for tasks in (network.before.forward, network.before.backward)]
    after = [time_tasks(system, tasks).us for tasks in (network.after.forward, network.after.backward)]
    windows = before if run.overlap_embeddings else [0.0, 0.0]
    beside = before[1] + after[1] if run.overlap_gradients else 0.0
    base = sum(before) + sum(after)

    def step_us(busy: float, exchanged: float, reduced: float) -> float:
        moved = exchange(exchanged)
        exposed = sum(max(0.0, moved - window) for window in windows)
        return base + busy + exposed + max(0.0, reduction(dense + reduced) - beside)

    slope, sums = exchange.least_us_per_byte, reduction.least_us_per_byte
    floors = tuple(
        Floor(
            base - is_sent * sum(windows) + is_reduced * (sums * dense - beside),
            1.0,
            is_sent * 2.0 * slope,
            is_reduced * sums,
        )
        for is_sent in (1, 0)
        for is_reduced in (1, 0)
    )
    return ShardingProblem(run.num_gpus, tables, ways, room_bytes, step_us, floors)
