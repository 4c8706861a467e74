"""Replay a dependency graph: tasks with durations, each after its stream's previous task and its predecessors.

It knows ranks, streams and dependencies, and neither pipelines nor models, so it times measured traces as well as
predicted steps. ``replay`` is its fast special case for pipelines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from predictor.core.timeline.spans import NO_DETAILS, Span

Stream = tuple[int, str]
START = -1  # stands for the predecessor of a task that waited for none


class GraphError(ValueError):
    """A dependency graph that cannot be replayed."""


class GraphTask(NamedTuple):
    """One task of a dependency graph.

    Attributes:
        rank: process that runs it.
        stream: within the rank.
        after: positions of the tasks that must have ended.
        lags_us: how long after the end of each of ``after`` it may start at the earliest; empty for at once.
        is_exclusive: its stream runs nothing beside it; otherwise it waits for ``after`` only, like a message on a link
            that carries several at once.
        category: of its span.
        details: likewise.
    """

    name: str
    rank: int
    stream: str
    duration_us: float
    after: tuple[int, ...] = ()
    lags_us: tuple[float, ...] = ()
    is_exclusive: bool = True
    category: str = ""
    details: Mapping[str, object] = NO_DETAILS


@dataclass(frozen=True, slots=True)
class GraphReplay:
    """A replayed dependency graph.

    Attributes:
        spans: of every task, in the order of the tasks.
        makespan_us: when the last task ends.
        critical_path: positions of tasks from the start to the makespan, each started by the one before.
        idle_us: per (rank, stream), the part of the makespan in which it runs no exclusive task; only of streams that
            have one.
    """

    spans: list[Span]
    makespan_us: float
    critical_path: list[int]
    idle_us: dict[Stream, float]


def replay_graph(tasks: Sequence[GraphTask]) -> GraphReplay:
    """Time every task as early as its stream and its predecessors allow.

    Tasks of one stream run one at a time, in the order in which they are given. Time and memory are linear in tasks and
    dependencies.

    Raises:
        GraphError: a duration or lag is negative or not a number, a predecessor is unknown, or tasks wait for each
            other in a circle; the message names the tasks.
    """
    before = _stream_predecessors(tasks)
    ends, starts, waited_for = _times(tasks, before)
    makespan = max(ends, default=0.0)
    path: list[int] = []
    at = ends.index(makespan) if ends else START
    while at != START:
        path.append(at)
        at = waited_for[at]
    idle: dict[Stream, float] = {}
    spans = []
    for task, start, end in zip(tasks, starts, ends, strict=True):
        name, rank, stream, duration, after, _, is_exclusive, category, details = task
        spans.append(Span(name, rank, stream, start, end, after, category, details))
        if is_exclusive:
            idle[rank, stream] = idle.get((rank, stream), makespan) - duration
    return GraphReplay(spans, makespan, path[::-1], {stream: max(0.0, us) for stream, us in idle.items()})


def task_ends_us(tasks: Sequence[GraphTask]) -> list[float]:
    """Return when the tasks of ``replay_graph`` end, where nothing else of a replay is asked.

    Raises:
        GraphError: as of ``replay_graph``.
    """
    return _times(tasks, _stream_predecessors(tasks))[0]


def _stream_predecessors(tasks: Sequence[GraphTask]) -> list[int]:
    """Return, for each task, the one before it in its stream, or START; check every duration and predecessor."""
    last: dict[Stream, int] = {}
    before = []
    for index, (_, rank, stream, duration, after, lags, is_exclusive, _, _) in enumerate(tasks):
        if not 0.0 <= duration < inf:
            raise GraphError(f"{_label(tasks, index)} lasts {duration} µs; a duration is finite and not negative")
        if after and (min(after) < 0 or max(after) >= len(tasks)):
            unknown = next(predecessor for predecessor in after if not 0 <= predecessor < len(tasks))
            raise GraphError(f"{_label(tasks, index)} waits for task {unknown}; there are tasks 0 to {len(tasks) - 1}")
        if lags:
            _check_lags(tasks, index)
        if is_exclusive:
            before.append(last.get((rank, stream), START))
            last[rank, stream] = index
        else:
            before.append(START)
    return before


def _check_lags(tasks: Sequence[GraphTask], index: int) -> None:
    after, lags = tasks[index].after, tasks[index].lags_us
    if len(lags) != len(after):
        raise GraphError(f"{_label(tasks, index)} has {len(lags)} lags; expected one for each of {len(after)} tasks")
    for lag in lags:
        if not 0.0 <= lag < inf:
            raise GraphError(f"{_label(tasks, index)} has a lag of {lag} µs; a lag is finite and not negative")


def _times(tasks: Sequence[GraphTask], before: Sequence[int]) -> tuple[list[float], list[float], list[int]]:
    """Return ends, starts, and what each task waited for last.

    Tasks are taken in their order; one whose predecessors have not all ended is left to the last of them.
    """
    not_ended = -1.0
    ends = [not_ended] * len(tasks)
    starts = [0.0] * len(tasks)
    waited_for = [START] * len(tasks)
    missing: dict[int, int] = {}
    dependents: defaultdict[int, list[int]] = defaultdict(list)
    for first in range(len(tasks)):
        predecessors = (before[first], *tasks[first].after)
        pending = [position for position in predecessors if position != START and ends[position] == not_ended]
        if pending:
            missing[first] = len(pending)
            for position in pending:
                dependents[position].append(first)
            continue
        ready = [first]
        while ready:
            index = ready.pop()
            task = tasks[index]
            last = before[index]
            start = ends[last] if last != START else 0.0
            lags = task.lags_us
            for number, predecessor in enumerate(task.after):
                end = ends[predecessor] + lags[number] if lags else ends[predecessor]
                if end > start or last == START:
                    start, last = end, predecessor
            starts[index], waited_for[index] = start, last
            ends[index] = start + task.duration_us
            for dependent in dependents.pop(index, ()) if dependents else ():
                missing[dependent] -= 1
                if not missing[dependent]:
                    del missing[dependent]
                    ready.append(dependent)
    if missing:
        raise GraphError(_circle(tasks, before, ends, next(iter(missing))))
    return ends, starts, waited_for


def _circle(tasks: Sequence[GraphTask], before: Sequence[int], ends: Sequence[float], at: int) -> str:
    """Return the message about a circle of tasks, found by following predecessors that have not ended."""
    position: dict[int, int] = {}
    while at not in position:
        position[at] = len(position)
        at = next(task for task in (before[at], *tasks[at].after) if task != START and ends[task] < 0.0)
    circle = [_label(tasks, task) for task, place in position.items() if place >= position[at]]
    shown = circle if len(circle) <= 6 else [*circle[:3], f"{len(circle) - 5} more", *circle[-2:]]
    return f"tasks wait for each other: {' waits for '.join([*shown, circle[0]])}"


def _label(tasks: Sequence[GraphTask], index: int) -> str:
    name, rank, stream, *_ = tasks[index]
    return f"task {index} ({name}, rank {rank}, {stream})"
