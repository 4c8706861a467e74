"""Why the row that computes most was idle: its gaps by kind, in a measured step and in a replayed one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from predictor.replay.traced_step import ADDED, TracedStep
from predictor.timeline.spans import Span
from predictor.traces.gaps import GapKind, gaps, idle_us_by_kind
from predictor.traces.local_graph import LocalGraph


class RowGaps(NamedTuple):
    """Idle time of a thread or stream by kind, in microseconds."""

    row: str
    us: dict[GapKind, float]


def retimed(step: TracedStep, spans: Sequence[Span], rank: int) -> LocalGraph:
    """Return a rank's graph with the times of a replay, from the start of its own step; a collective waits inside."""
    local, start_us = step.ranks[rank], step.starts_us[rank]
    times: dict[int, tuple[float, float]] = {}
    end_us = 0.0
    for role, span in zip(step.roles, spans, strict=True):
        if role.rank == rank and role.task != ADDED:
            first, _ = times.get(role.task, (span.start_us, 0.0))  # of a joined collective, its arrival
            times[role.task] = first - start_us, span.end_us - start_us
            end_us = max(end_us, span.end_us - start_us)
    tasks = [
        task._replace(start_us=times[at][0], duration_us=times[at][1] - times[at][0])
        for at, task in enumerate(local.tasks)
    ]
    return replace(local, tasks=tasks, step_us=end_us)


def busiest_gaps(step: TracedStep, spans: Sequence[Span]) -> list[RowGaps]:
    """Return, for every rank, the gaps of the row that computes most."""
    computing: defaultdict[tuple[int, int], float] = defaultdict(float)
    for role, span in zip(step.roles, spans, strict=True):
        if role.computes and role.task != ADDED:
            computing[role.rank, step.ranks[role.rank].tasks[role.task].row] += span.duration_us
    listed = []
    for rank, local in enumerate(step.ranks):
        _, row = max((computing[rank, row], -row) for row in range(len(local.rows)))
        row = -row
        listed.append(RowGaps(local.rows[row], idle_us_by_kind(gaps(retimed(step, spans, rank)), row)))
    return listed
