"""The tasks of a replayed step's critical path, with what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from predictor.replay.graph.local_graph import EdgeKind, LocalGraph, TracedTask
from predictor.replay.graph.local_replay import replay_local


class PathPart(NamedTuple):
    """A task on the path, the time since the one before it ended, and the edge over which it waited for that one."""

    task: TracedTask
    us: float
    lag_us: float
    edge: EdgeKind


def critical_parts(local: LocalGraph) -> Iterator[PathPart]:
    """Yield the critical path of an unchanged step; the first task has the edge ROW."""
    replay = replay_local(local)
    last, ended = -1, 0.0
    for number in replay.critical_path:
        span, task = replay.spans[number], local.tasks[number]
        kinds = {edge.task: edge.kind for edge in task.after}
        yield PathPart(task, span.duration_us, span.start_us - ended, kinds.get(last, EdgeKind.ROW))
        last, ended = number, span.end_us
