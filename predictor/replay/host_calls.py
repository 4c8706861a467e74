"""Runtime calls of a traced step: what they launched, and which tasks of a thread they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from predictor.replay.traced_step import ADDED, TracedStep
from predictor.traces.events import UNKNOWN
from predictor.traces.local_graph import TaskKind, TracedTask


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


def _traced(step: TracedStep, position: int) -> TracedTask | None:
    role = step.roles[position]
    return None if role.task == ADDED else step.ranks[role.rank].tasks[role.task]
