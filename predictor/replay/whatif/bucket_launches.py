"""Start of gradient buckets: when their gradients are ready, and when the host launches them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from predictor.replay.graph.local_graph import Collective, EdgeKind, LocalGraph, TaskKind, TracedOperator
from predictor.replay.whatif.traced_step import TracedStep

# What a trace shows of a launch: the call, and events that the stream of the collective waits for.
OF_A_LAUNCH = (EdgeKind.LAUNCH, EdgeKind.EVENT)
ON_GPU = (TaskKind.KERNEL, TaskKind.COPY)


class Wait(NamedTuple):
    """A task of a local graph that must have ended, and how long before."""

    task: int
    lag_us: float


class BucketLaunches(NamedTuple):
    """How the host of one rank launched the traced buckets.

    Attributes:
        local: graph of the rank.
        traced: by the last gradient of each, what its launch waited for.
        lag_us: typically from the host's task that completed the last gradient until the launch let the bucket start.
    """

    local: LocalGraph
    traced: Mapping[int, tuple[Wait, ...]]
    lag_us: float

    def waits(self, gradient: int) -> tuple[Wait, ...]:
        """Return what a bucket waits for that is launched once an operator has completed the last gradient."""
        if gradient in self.traced:
            return self.traced[gradient]
        host = completing_task(self.local, gradient)
        return () if host is None else (Wait(host, self.lag_us),)


def bucket_launches(local: LocalGraph, buckets: Sequence[Collective]) -> BucketLaunches:
    """Return how the host of a rank launched its buckets."""
    traced = {}
    lags = []
    for bucket in buckets:
        edges = [edge for edge in local.tasks[bucket.task].after if edge.kind in OF_A_LAUNCH]
        traced[bucket.gradients[-1]] = tuple(Wait(edge.task, edge.lag_us) for edge in edges)
        host = completing_task(local, bucket.gradients[-1])
        given = [_end_us(local, edge.task) + edge.lag_us for edge in edges if edge.kind is EdgeKind.LAUNCH]
        if host is not None and given:
            lags.append(max(0.0, max(given) - _end_us(local, host)))
    return BucketLaunches(local, traced, median(lags) if lags else 0.0)


def completing_task(local: LocalGraph, operator: int) -> int | None:
    """Return the host's last task for a gradient: on a GPU the launch of its last kernel; None without any."""
    tasks = local.operators[operator].tasks
    kernels = [task for task in tasks if local.tasks[task].kind in ON_GPU]
    if kernels:
        last = max(kernels, key=lambda task: _end_us(local, task))
        launches = [edge.task for edge in local.tasks[last].after if edge.kind is EdgeKind.LAUNCH]
        if launches:
            return launches[0]
    hosts = [task for task in tasks if local.tasks[task].kind is TaskKind.HOST]
    return max(hosts, key=lambda task: _end_us(local, task), default=None)


def _end_us(local: LocalGraph, task: int) -> float:
    return local.tasks[task].start_us + local.tasks[task].duration_us


class Readies(NamedTuple):
    """Which tasks complete the gradients of one rank.

    Attributes:
        local: graph of the rank.
        places: of its tasks in the replay.
        launched: of each thread, when its launches ended, and the kernels and copies that they started.
    """

    local: LocalGraph
    places: Mapping[int, int]
    launched: Mapping[int, tuple[list[float], list[int]]]

    def of(self, operator: TracedOperator) -> int | None:
        """Return the position of the task that ends an operator's work; None where nothing of it ran.

        Autograd may take a gradient as it is, with no kernel of its own; it is then there behind what the thread has
        launched before.
        """
        local = self.local
        kinds = ON_GPU if local.backend != "cpu" else (TaskKind.HOST,)
        own = [task for task in operator.tasks if local.tasks[task].kind in kinds] or operator.tasks
        if not own:
            return None
        last = max(own, key=lambda task: _end_us(local, task))
        if local.tasks[last].kind not in kinds:
            ends, tasks = self.launched.get(local.tasks[last].row, ([], []))
            before = bisect_right(ends, _end_us(local, last))
            last = tasks[before - 1] if before else last
        return self.places[last]


def readies_of(step: TracedStep) -> list[Readies]:
    """Return which tasks complete the gradients of every rank."""
    return [Readies(local, places, _launched(local)) for local, places in zip(step.ranks, step.places(), strict=True)]


def _launched(local: LocalGraph) -> dict[int, tuple[list[float], list[int]]]:
    by_row: dict[int, list[tuple[float, int]]] = {}
    for position, task in enumerate(local.tasks):
        if task.kind in ON_GPU:
            for edge in task.after:
                if edge.kind is EdgeKind.LAUNCH:
                    by_row.setdefault(local.tasks[edge.task].row, []).append((_end_us(local, edge.task), position))
    return {
        row: ([end_us for end_us, _ in pairs], [position for _, position in pairs])
        for row, pairs in ((row, sorted(pairs)) for row, pairs in by_row.items())
    }
