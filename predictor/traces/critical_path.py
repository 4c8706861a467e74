"""What the time of a step was spent on, along its critical path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from predictor.timeline.graph import GraphReplay
from predictor.traces.local_graph import NO_OPERATOR, EdgeKind, LocalGraph, TaskKind, TracedTask

LAUNCHES = ("Launch", "emcpy", "emset")  # in the names of calls that start something on the GPU


class PathKind(StrEnum):
    """What time on the critical path is spent on."""

    COMPUTE = "compute"  # kernels and copies; on a CPU operators
    COMMUNICATION = "communication"
    LAUNCH = "launch"  # calls that start kernels, and the latency until these begin
    HOST = "host"  # operators and Python on the host of a GPU, Python alone on a CPU
    WAIT = "wait"  # from the end of what was waited for until work goes on


class PathPart(NamedTuple):
    """A task on the critical path.

    Attributes:
        task: position in ``LocalGraph.tasks``.
        us: its duration.
        lag_us: before it, since the task before it on the path had ended.
        edge: kind of the edge over which it waited; ROW for the first.
    """

    task: int
    us: float
    lag_us: float
    edge: EdgeKind


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The tasks that make a step as long as it is; shortening any of them shortens it, until another path is longer.

    Attributes:
        parts: in their order; durations and lags add up to the step.
        us_by_kind: what they are.
        us_by_operator: of tasks without lags, by the outermost operator's name, the longest first; "" for what is in
            none.
    """

    parts: Sequence[PathPart]
    us_by_kind: dict[PathKind, float]
    us_by_operator: dict[str, float]


def critical_path(local: LocalGraph, replay: GraphReplay) -> CriticalPath:
    """Return the critical path of a replayed step, changed or not.

    Args:
        local: the step.
        replay: of its tasks, in their order.
    """
    parts = []
    kinds = dict.fromkeys(PathKind, 0.0)
    operators: defaultdict[str, float] = defaultdict(float)
    on_gpu = local.backend != "cpu"
    last = None
    for number in replay.critical_path:
        span, task = replay.spans[number], local.tasks[number]
        edges = {edge.task: edge.kind for edge in task.after}
        kind = edges.get(last, EdgeKind.ROW) if last is not None else EdgeKind.ROW
        lag = span.start_us - (replay.spans[last].end_us if last is not None else 0.0)
        parts.append(PathPart(number, span.end_us - span.start_us, lag, kind))
        kinds[_kind_of(task, on_gpu)] += span.end_us - span.start_us
        kinds[_kind_of_lag(kind, task)] += lag
        operators[_outermost(local, task)] += span.end_us - span.start_us
        last = number
    longest_first = sorted(operators.items(), key=lambda named: -named[1])
    return CriticalPath(parts, kinds, dict(longest_first))


def _kind_of(task: TracedTask, on_gpu: bool) -> PathKind:
    """Return what a task's duration is."""
    if task.kind is TaskKind.HOST:
        if on_gpu:
            is_launch = "::" not in task.name and any(part in task.name for part in LAUNCHES)
            return PathKind.LAUNCH if is_launch else PathKind.HOST
        return PathKind.HOST if task.operator == NO_OPERATOR else PathKind.COMPUTE
    if task.kind is TaskKind.WAIT:
        return PathKind.WAIT
    return PathKind.COMMUNICATION if task.kind is TaskKind.COLLECTIVE else PathKind.COMPUTE


def _kind_of_lag(edge: EdgeKind, task: TracedTask) -> PathKind:
    """Return what the time before a task is."""
    if edge is EdgeKind.LAUNCH:
        return PathKind.LAUNCH
    return PathKind.HOST if edge is EdgeKind.ROW and task.kind is TaskKind.HOST else PathKind.WAIT


def _outermost(local: LocalGraph, task: TracedTask) -> str:
    operator = task.operator
    if operator == NO_OPERATOR:
        return ""
    while local.operators[operator].parent != NO_OPERATOR:
        operator = local.operators[operator].parent
    return local.operators[operator].name
