"""Why the row that computes most was idle: its gaps by kind, in a measured step and in a replayed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from predictor.core.timeline.graph import GraphTask
from predictor.core.timeline.spans import Span
from predictor.replay.graph.gaps import NO_TASK, GapKind, gaps, idle_us_by_kind
from predictor.replay.graph.local_graph import CARRIED, Edge, EdgeKind, LocalGraph, TaskKind, TracedTask
from predictor.replay.whatif.traced_step import ADDED, Role, TracedStep

ON_HOST = (TaskKind.HOST, TaskKind.WAIT)


class RowGaps(NamedTuple):
    """Idle time of a thread or stream by kind, in microseconds."""

    row: str
    us: dict[GapKind, float]


def retimed(step: TracedStep, spans: Sequence[Span]) -> list[LocalGraph]:
    """Return the ranks' graphs with the times of a replay, each from the start of its own step.

    What tasks wait for is as in the step, changed or not; collectives that a change added come last, each kind on a row
    of its own. A collective lasts from its rank's arrival on, waiting included.
    """
    return [_retimed(step, spans, rank) for rank in range(len(step.ranks))]


def _retimed(step: TracedStep, spans: Sequence[Span], rank: int) -> LocalGraph:
    local = step.ranks[rank]
    own = (
        span.start_us for role, span in zip(step.roles, spans, strict=True) if role.rank == rank and role.task != ADDED
    )
    start_us = min(own, default=0.0)
    numbers: dict[int, int] = {}  # of tasks in the graph, by their positions in the replay
    entries: dict[int, int] = {}  # the other way round; of a collective its arrival
    ends: dict[int, float] = {}
    rows = list(local.rows)
    tasks = list(local.tasks)
    for position, (role, span) in enumerate(zip(step.roles, spans, strict=True)):
        if role.rank != rank or (role.task == ADDED and position not in step.added):
            continue
        number = role.task
        if number == ADDED:
            number = len(tasks)
            tasks.append(_added(role, span, rows))
        numbers[position] = number
        entries.setdefault(number, position)
        ends[number] = span.end_us - start_us
    for number, position in entries.items():
        start = spans[position].start_us - start_us
        after = _edges(tasks, number, step.tasks[position], numbers)
        tasks[number] = tasks[number]._replace(start_us=start, duration_us=ends[number] - start, after=after)
    return replace(local, rows=rows, tasks=tasks, step_us=max(ends.values(), default=0.0))


def _added(role: Role, span: Span, rows: list[str]) -> TracedTask:
    """Return a collective of a change, without times; its row is added where there is none."""
    if span.stream not in rows:
        rows.append(span.stream)
    return TracedTask(span.name, role.kind, rows.index(span.stream), 0.0, 0.0)


def _edges(
    tasks: Sequence[TracedTask], number: int, graph_task: GraphTask, numbers: Mapping[int, int]
) -> tuple[Edge, ...]:
    """Return what a task of a replay waits for on its own rank; what a change added is told by the kinds of both."""
    known = {edge.task: edge for edge in tasks[number].after}
    lags = graph_task.lags_us or (0.0,) * len(graph_task.after)
    edges = []
    for before, lag in zip(graph_task.after, lags, strict=True):
        task = numbers.get(before)
        if task is None:
            continue
        is_sync = tasks[number].kind in ON_HOST and tasks[task].kind not in ON_HOST
        edge = known.get(task, Edge(task, lag, EdgeKind.SYNC if is_sync else EdgeKind.EVENT))
        edges.append(edge._replace(lag_us=lag))
    return tuple(edges)


def busiest_gaps(step: TracedStep, spans: Sequence[Span]) -> list[RowGaps]:
    """Return, for every rank, the gaps of the row that computes most."""
    computing = [[0.0] * len(local.rows) for local in step.ranks]
    for role, span in zip(step.roles, spans, strict=True):
        if role.computes and role.task != ADDED and span.name != CARRIED:
            computing[role.rank][step.ranks[role.rank].tasks[role.task].row] += span.end_us - span.start_us
    listed = []
    for local, busy_us in zip(retimed(step, spans), computing, strict=True):
        row = busy_us.index(max(busy_us))
        own = (gap for gap in gaps(local) if gap.task == NO_TASK or local.tasks[gap.task].name != CARRIED)
        listed.append(RowGaps(local.rows[row], idle_us_by_kind(own, row)))
    return listed
