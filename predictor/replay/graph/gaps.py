"""Causes of idle time: every gap between tasks of a stream or thread, by the task that ended it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN
from predictor.replay.graph.local_graph import Edge, EdgeKind, LocalGraph, TaskKind, TracedTask

NO_TASK = -1
TIGHT_US = 1e-6  # of an edge: rounding of sums in floats
HALF = 0.5
ON_HOST = (TaskKind.HOST, TaskKind.WAIT)


class GapKind(StrEnum):
    """What a row without work waits for."""

    LAUNCH = "launch-bound"  # the host had not launched the next task for most of it, or the launch was on its way
    SYNC = "sync-bound"  # likewise, and the host was late because it waited for the GPU or a collective itself
    DEPENDENCY = "dependency-bound"  # launched: it waits for another stream or thread, or for room on the GPU
    NO_WORK = "no work"  # nothing comes after it in the step


class Gap(NamedTuple):
    """Idle time of a row before a task; times in microseconds from the start of the step.

    Attributes:
        row: position in ``LocalGraph.rows``.
        task: that ends the gap; NO_TASK: the end of the step does.
        waited_for: task that it waited for: the one that launched it, the wait that held up the launch, or the one that
            it depends on; NO_TASK: none is known.
    """

    row: int
    start_us: float
    us: float
    kind: GapKind
    task: int
    waited_for: int


def gaps(local: LocalGraph) -> list[Gap]:
    """Return all idle time of all rows, by row and start.

    The gaps of a row and the durations of its tasks add up to the step.
    """
    by_row: defaultdict[int, list[int]] = defaultdict(list)
    for number, task in enumerate(local.tasks):
        by_row[task.row].append(number)
    waits = _waits(local)
    calls = {
        task.event: number
        for number, task in reversed(list(enumerate(local.tasks)))
        if task.event != UNKNOWN and task.kind in ON_HOST
    }
    result = []
    for row, numbers in sorted(by_row.items()):
        at = 0.0
        for number in numbers:
            task = local.tasks[number]
            if task.start_us - at > TIGHT_US:
                kind, waited_for = _explain(local.tasks, number, at, waits, calls)
                result.append(Gap(row, at, task.start_us - at, kind, number, waited_for))
            at = max(at, task.start_us + task.duration_us)
        if local.step_us - at > TIGHT_US:
            result.append(Gap(row, at, local.step_us - at, GapKind.NO_WORK, NO_TASK, NO_TASK))
    return result


def idle_us_by_kind(gaps: Iterable[Gap], row: int) -> dict[GapKind, float]:
    """Return how long a row was idle for each reason, in µs."""
    total = dict.fromkeys(GapKind, 0.0)
    for gap in gaps:
        if gap.row == row:
            total[gap.kind] += gap.us
    return total


def tight_edge(tasks: Sequence[TracedTask], number: int) -> Edge | None:
    """Return the edge that a task's start hung on, one of another row before its own; None: it waited for nothing."""
    task = tasks[number]
    tight = [
        edge
        for edge in task.after
        if task.start_us - (tasks[edge.task].start_us + tasks[edge.task].duration_us + edge.lag_us) <= TIGHT_US
    ]
    return min(tight, key=lambda edge: edge.kind is EdgeKind.ROW, default=None)


class _Wait(NamedTuple):
    """Time in which a thread waited, and the task that went on afterwards."""

    start_us: float
    end_us: float
    task: int


def _waits(local: LocalGraph) -> dict[int, list[_Wait]]:
    """Return, by row of a thread, when it waited for the GPU or a collective."""
    ends: dict[int, float] = {}
    waits: dict[int, list[_Wait]] = {}
    for number, task in enumerate(local.tasks):
        if task.kind in ON_HOST:
            edge = tight_edge(local.tasks, number)
            if edge is not None and edge.kind is EdgeKind.SYNC:
                end = task.start_us + (task.duration_us if task.kind is TaskKind.WAIT else 0.0)
                waits.setdefault(task.row, []).append(_Wait(ends.get(task.row, 0.0), end, number))
            ends[task.row] = task.start_us + task.duration_us
    return waits


def _explain(
    tasks: Sequence[TracedTask],
    number: int,
    since_us: float,
    waits: Mapping[int, Sequence[_Wait]],
    calls: Mapping[int, int],
) -> tuple[GapKind, int]:
    """Return why nothing ran since a time until a task, and what it waited for.

    A task that was not launched during half of the gap or more was launched late, even if it waited for something else
    last. Its launch was late because its thread waited, if it did during half of the gap or more.
    """
    until_us = tasks[number].start_us
    edge = tight_edge(tasks, number)
    launch = next((edge for edge in tasks[number].after if edge.kind is EdgeKind.LAUNCH), None)
    if launch is not None and launch is not edge:
        launched_us = tasks[launch.task].start_us + tasks[launch.task].duration_us
        if min(launched_us, until_us) - since_us >= HALF * (until_us - since_us):
            edge = launch
    if edge is None:
        return GapKind.DEPENDENCY, NO_TASK
    if edge.kind is EdgeKind.SYNC:
        return GapKind.SYNC, edge.task
    if edge.kind is not EdgeKind.LAUNCH:
        return GapKind.DEPENDENCY, edge.task
    waited_us, waited_for = _waited(waits.get(tasks[edge.task].row, ()), since_us, until_us)
    if waited_us >= HALF * (until_us - since_us):
        return GapKind.SYNC, waited_for
    return GapKind.LAUNCH, calls.get(tasks[number].call, edge.task)


def _waited(waits: Sequence[_Wait], since_us: float, until_us: float) -> tuple[float, int]:
    """Return how long a thread waited between two times, and the task after the longest wait."""
    longest_us, waited_us, waited_for = 0.0, 0.0, NO_TASK
    for place in range(bisect_right(waits, since_us, key=lambda wait: wait.end_us), len(waits)):
        start, end, task = waits[place]
        if start >= until_us:
            break
        us = min(end, until_us) - max(start, since_us)
        waited_us += us
        if us > longest_us:
            longest_us, waited_for = us, task
    return waited_us, waited_for
