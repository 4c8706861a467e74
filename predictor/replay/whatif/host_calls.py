"""Runtime calls of a traced step: what they launched, which tasks of a thread they are, what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from predictor.core.timeline.graph import GraphTask
from predictor.replay.files.events import UNKNOWN
from predictor.replay.graph.local_graph import Edge, EdgeKind, TaskKind, TracedTask
from predictor.replay.whatif.traced_step import ADDED, TracedStep


class Call(NamedTuple):
    """A runtime call: the position of its rank, and its own in the trace's events."""

    rank: int
    event: int


def launched(step: TracedStep) -> dict[Call, list[int]]:
    """Return every call that launches, with what it started on a GPU; on a CPU there is none."""
    calls: dict[Call, list[int]] = {}
    arrivals = set(step.arrivals.values())
    for position, role in enumerate(step.roles):
        traced = None if position in arrivals else _traced(step, position)
        if traced is not None and traced.call != UNKNOWN:
            calls.setdefault(Call(role.rank, traced.call), []).append(position)
    return calls


def launching_only(step: TracedStep, positions: Iterable[int]) -> list[Call]:
    """Return the calls that launch some tasks and nothing else."""
    removed = set(positions)
    return [call for call, started in launched(step).items() if removed.issuperset(started)]


def own_tasks(step: TracedStep, calls: Iterable[Call]) -> Mapping[Call, list[int]]:
    """Return the tasks of a thread that calls are, in order: some wait in between, some take no time and have none."""
    own: dict[Call, list[int]] = {call: [] for call in calls}
    for position, role in enumerate(step.roles):
        traced = _traced(step, position)
        if traced is not None and role.kind in (TaskKind.HOST, TaskKind.WAIT):
            parts = own.get(Call(role.rank, traced.event))
            if parts is not None:
                parts.append(position)
    return own


def without_waits(step: TracedStep, is_dropped: Callable[[int, Edge], bool]) -> TracedStep:
    """Return the step in which some calls do not wait.

    Args:
        step: to change.
        is_dropped: whether the call of an edge of a rank, by its position, does not wait.
    """
    places = step.places()
    changed = {}
    for rank, local in enumerate(step.ranks):
        for number, task in enumerate(local.tasks):
            waits = [edge for edge in task.after if edge.kind is EdgeKind.SYNC and is_dropped(rank, edge)]
            if waits:
                position = places[rank][number]
                changed[position] = _not_after(step.tasks[position], {places[rank][edge.task] for edge in waits})
    return step.with_tasks(changed, {position: step.costs[position] for position in changed if position in step.costs})


def _not_after(task: GraphTask, dropped: Collection[int]) -> GraphTask:
    """Return a task that does not wait for some; of the first of a thread, which nothing else starts, they stay."""
    kept = [number for number, before in enumerate(task.after) if before not in dropped]
    if not kept:
        return task
    lags = tuple(task.lags_us[number] for number in kept) if task.lags_us else ()
    return task._replace(after=tuple(task.after[number] for number in kept), lags_us=lags)


def _traced(step: TracedStep, position: int) -> TracedTask | None:
    role = step.roles[position]
    return None if role.task == ADDED else step.ranks[role.rank].tasks[role.task]
