"""Why the row that computes most was idle: its gaps by kind, in a measured step and in a replayed one."""

from __future__ import annotations

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


def retimed(step: TracedStep, spans: Sequence[Span]) -> list[LocalGraph]:
    """Return the ranks' graphs with the times of a replay, each from the start of its own step.

    A collective lasts from its rank's arrival on, waiting included.
    """
    times: list[dict[int, tuple[float, float]]] = [{} for _ in step.ranks]
    for role, span in zip(step.roles, spans, strict=True):
        if role.task != ADDED:
            of_rank, start_us = times[role.rank], step.starts_us[role.rank]
            first = of_rank[role.task][0] if role.task in of_rank else span.start_us - start_us
            of_rank[role.task] = first, span.end_us - start_us
    graphs = []
    for local, of_rank in zip(step.ranks, times, strict=True):
        ends = (of_rank[at] for at in range(len(local.tasks)))
        timed = zip(local.tasks, ends, strict=True)
        tasks = [task._replace(start_us=start, duration_us=end - start) for task, (start, end) in timed]
        graphs.append(replace(local, tasks=tasks, step_us=max((end for _, end in of_rank.values()), default=0.0)))
    return graphs


def busiest_gaps(step: TracedStep, spans: Sequence[Span]) -> list[RowGaps]:
    """Return, for every rank, the gaps of the row that computes most."""
    computing = [[0.0] * len(local.rows) for local in step.ranks]
    for role, span in zip(step.roles, spans, strict=True):
        if role.computes and role.task != ADDED:
            computing[role.rank][step.ranks[role.rank].tasks[role.task].row] += span.end_us - span.start_us
    listed = []
    for local, busy_us in zip(retimed(step, spans), computing, strict=True):
        row = busy_us.index(max(busy_us))
        listed.append(RowGaps(local.rows[row], idle_us_by_kind(gaps(local), row)))
    return listed
