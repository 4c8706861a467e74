"""Critical path of a replayed step by operators, and its changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.core.timeline.graph import GraphReplay
from predictor.replay.graph.local_graph import CARRIED, TaskKind
from predictor.replay.whatif.traced_step import TracedStep

GAP = "gap"  # between the end of a task and the start of the one that waited for it: latency, or nothing was recorded
WORDS = {
    TaskKind.HOST: "host",
    TaskKind.WAIT: "wait",
    TaskKind.KERNEL: "kernel",
    TaskKind.COPY: "copy",
    TaskKind.COLLECTIVE: "collective",
}
SMALLEST_US = 1e-3  # the resolution of a trace


class PathShare(NamedTuple):
    """What an operator has on the critical path.

    Attributes:
        operator: innermost one; a task's own name where it belongs to none.
        kind: host, wait, kernel, copy, collective, or the gap before a task of it.
        path_us: on the path.
        total_us: of all its tasks of this kind in the step, on the rank where they take longest.
        calls: tasks of it on the path.
    """

    operator: str
    kind: str
    path_us: float
    total_us: float
    calls: int


class Move(NamedTuple):
    """What an operator had on the critical path before and has after a change."""

    operator: str
    kind: str
    before_us: float
    after_us: float

    @property
    def change_us(self) -> float:
        """Return by how much its time on the path grew."""
        return self.after_us - self.before_us

    @property
    def how(self) -> str:
        """Return whether it joined or left the path, or what became of its time there."""
        if self.before_us <= SMALLEST_US:
            return "joined"
        if self.after_us <= SMALLEST_US:
            return "left"
        return "longer" if self.change_us > 0 else "shorter"


def operator_shares(
    step: TracedStep, replay: GraphReplay, since_us: float = 0.0
) -> tuple[list[PathShare], list[PathShare]]:
    """Return the operators of the critical path, and all operators.

    The first are by their time on the path, which add up to the step; the others by their time in all, without waits.

    Args:
        step: that was replayed.
        replay: of it.
        since_us: when the step begins that the path adds up to (``SteadyReplay``).
    """
    on_path = _on_path(step, replay, since_us)
    totals = _totals(step, replay)
    path = [
        PathShare(*key, us, totals.get(key, us), int(calls)) for key, (us, calls) in on_path.items() if us > SMALLEST_US
    ]
    every = [
        PathShare(*key, on_path.get(key, (0.0, 0.0))[0], us, int(on_path.get(key, (0.0, 0.0))[1]))
        for key, us in totals.items()
        if us > SMALLEST_US and key[1] != WORDS[TaskKind.WAIT]
    ]
    by_path = sorted(path, key=lambda share: -share.path_us)
    return by_path, sorted(every, key=lambda share: -share.total_us)


def _on_path(step: TracedStep, replay: GraphReplay, since_us: float) -> dict[tuple[str, str], list[float]]:
    """Return time and number of the tasks of every operator on the critical path."""
    on_path: dict[tuple[str, str], list[float]] = {}
    ended = since_us
    for position in replay.critical_path:
        role, span = step.roles[position], replay.spans[position]
        if span.start_us - ended > SMALLEST_US:
            gap = on_path.setdefault((role.operator, GAP), [0.0, 0.0])
            gap[0] += span.start_us - ended
            gap[1] += 1
        entry = on_path.setdefault((role.operator, WORDS[role.kind]), [0.0, 0.0])
        entry[0] += span.end_us - max(span.start_us, since_us)
        entry[1] += 1
        ended = span.end_us
    return on_path


def _totals(step: TracedStep, replay: GraphReplay) -> dict[tuple[str, str], float]:
    by_rank: dict[tuple[str, str, int], float] = {}
    for role, span in zip(step.roles, replay.spans, strict=True):
        if span.name == CARRIED:
            continue
        key = (role.operator, WORDS[role.kind], role.rank)
        by_rank[key] = by_rank.get(key, 0.0) + span.end_us - span.start_us
    totals: dict[tuple[str, str], float] = {}
    for (operator, kind, _), us in by_rank.items():
        totals[operator, kind] = max(totals.get((operator, kind), 0.0), us)
    return totals


def moved(before: Sequence[PathShare], after: Sequence[PathShare]) -> list[Move]:
    """Return what changed on the critical path, the largest change first."""
    times = [{(share.operator, share.kind): share.path_us for share in shares} for shares in (before, after)]
    keys = dict.fromkeys([*times[0], *times[1]])
    moves = [Move(*key, times[0].get(key, 0.0), times[1].get(key, 0.0)) for key in keys]
    return sorted((move for move in moves if abs(move.change_us) > SMALLEST_US), key=lambda move: -abs(move.change_us))
