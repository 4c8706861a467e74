"""Steady-state time of a step: its share of a run of equal steps, the host running ahead of the GPU.

A GPU may still run one step when the host begins the next. The end of one step alone is then later than what the step
adds to the run, and a change moves it less. Several copies of the step, one after the other on every thread and stream,
show what one adds. Calls that waited for work of earlier steps wait for the same work of the copies before, so that the
queue of the GPU stays as full as it was, in launches: with faster kernels it is emptied in less time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from predictor.core.base.collector import paused_collector
from predictor.core.timeline.graph import GraphReplay, GraphTask, replay_graph, task_ends_us
from predictor.core.timeline.spans import Span
from predictor.replay.graph.local_graph import CARRIED

COPIES = 4


class Counterpart(NamedTuple):
    """The task of a step that another one, of earlier steps, was: of which copy before, and its position."""

    copies: int
    task: int


class SteadyReplay(NamedTuple):
    """The last of several copies of a step.

    Attributes:
        replay: of it; times from when its first thread begins.
        since_us: when the copies before had ended; from then on the step is what this one adds.
    """

    replay: GraphReplay
    since_us: float

    @property
    def step_us(self) -> float:
        """Return what the step adds to a run."""
        return self.replay.makespan_us - self.since_us


def steady_step_us(tasks: Sequence[GraphTask]) -> float:
    """Return the time that the last of several copies of a step adds, in µs.

    Args:
        tasks: of a step, of one rank or of all (``graph_tasks_of``), changed or not. What earlier steps left to do
            counts for nothing, as the copies before leave it.

    Raises:
        GraphError: its tasks wait for each other in a circle.
    """
    with paused_collector():
        ends = task_ends_us(_repeated(tasks, COPIES, _counterparts(tasks)))
    return max(ends, default=0.0) - max(ends[: (COPIES - 1) * len(tasks)], default=0.0)


def steady_replay(tasks: Sequence[GraphTask]) -> SteadyReplay:
    """Replay several copies of a step and return the last one.

    Args:
        tasks: as of ``steady_step_us``.

    Raises:
        GraphError: tasks wait for each other in a circle.
    """
    counterparts = _counterparts(tasks)
    with paused_collector():
        whole = replay_graph(_repeated(tasks, COPIES, counterparts))
    first = (COPIES - 1) * len(tasks)
    last = whole.spans[first:]
    began = min(
        (
            span.start_us
            for position, (task, span) in enumerate(zip(tasks, last, strict=True))
            if task.is_exclusive and position not in counterparts
        ),
        default=0.0,
    )
    since_us = max((span.end_us for span in whole.spans[:first]), default=0.0)
    spans = []
    for position, span in enumerate(last):
        ran = span
        if position in counterparts:
            back, task = counterparts[position]
            ran = whole.spans[task + (COPIES - 1 - back) * len(tasks)] if back < COPIES else span
        spans.append(_moved(tasks[position], ran, began))
    path = [position - first for position in whole.critical_path if whole.spans[position].end_us > since_us]
    return SteadyReplay(GraphReplay(spans, whole.makespan_us - began, path, {}), since_us - began)


def _moved(task: GraphTask, span: Span, began_us: float) -> Span:
    """Return when a task ran, from when its copy began."""
    start, end = (max(0.0, at - began_us) for at in (span.start_us, span.end_us))
    return Span(task.name, task.rank, task.stream, start, end, task.after, task.category, task.details)


def _repeated(tasks: Sequence[GraphTask], copies: int, counterparts: Mapping[int, Counterpart]) -> list[GraphTask]:
    """Return copies of a step, one after the other: what earlier steps left to do is that of the copies before."""
    carried = {position for position, task in enumerate(tasks) if task.name == CARRIED}
    repeated = []
    for copy in range(copies):
        first = copy * len(tasks)
        for position, (name, rank, stream, us, before, lags, is_exclusive, category, details) in enumerate(tasks):
            after: tuple[int, ...] = ()
            if position in carried:
                us, lags = 0.0, ()
            elif carried.isdisjoint(before):
                after = tuple([first + task for task in before])
            else:
                after, lags = _after(before, lags, copy, len(tasks), carried, counterparts)
            repeated.append(GraphTask(name, rank, stream, us, after, lags, is_exclusive, category, details))
    return repeated


def _after(
    before: Sequence[int],
    lags_us: Sequence[float],
    copy: int,
    count: int,
    carried: Collection[int],
    counterparts: Mapping[int, Counterpart],
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return what a task of a copy waits for, some of it work of earlier steps; of those before the first copy none."""
    after, lags = [], []
    for task, lag_us in zip(before, lags_us or [0.0] * len(before), strict=True):
        back, own = counterparts.get(task, Counterpart(copy + 1, 0)) if task in carried else (0, task)
        if back <= copy:
            after.append((copy - back) * count + own)
            lags.append(lag_us)
    return tuple(after), tuple(lags)


def _counterparts(tasks: Sequence[GraphTask]) -> dict[int, Counterpart]:
    """Return, of what earlier steps left to do, which task of the steps before it was: counted back in its stream."""
    own: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    carried: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for position, task in enumerate(tasks):
        (carried if task.name == CARRIED else own)[task.rank, task.stream].append(position)
    counterparts = {}
    for stream, positions in carried.items():
        count = len(own[stream])
        for number, position in enumerate(reversed(positions)):
            if count:
                counterparts[position] = Counterpart(1 + number // count, own[stream][-1 - number % count])
    return counterparts
