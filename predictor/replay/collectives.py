"""Collectives of a replayed step: how many, how large, how long, and how long ranks wait in them for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from predictor.core.timeline.spans import Span
from predictor.replay.breakdown import traffic_of
from predictor.replay.graph.global_replay import summed_waits
from predictor.replay.whatif.collective_times import timed_collectives
from predictor.replay.whatif.traced_step import TracedStep


class CollectiveTotals(NamedTuple):
    """All collectives of one name, purpose and group on the rank that spends the most time in them.

    Attributes:
        part: what they are for, as the breakdown calls it.
        group: of processes; empty where unknown.
        size_bytes: of all calls; 0 where unknown.
        us: moving data; with one traced rank, waiting for the others included.
        waiting_us: for other ranks; None where only one rank was traced.
    """

    name: str
    part: str
    group: str
    rank: int
    calls: int
    size_bytes: float
    us: float
    waiting_us: float | None


class Waits(NamedTuple):
    """How long a rank waited in collectives in which another rank was the last to arrive."""

    rank: int
    waited_for: int
    us: float


def waits_between(step: TracedStep, spans: Sequence[Span]) -> list[Waits]:
    """Return who waited for whom in the collectives that several traced ranks share, the longest first.

    A rank waits for the last to arrive of those that its transfer needs: of all, or, of a broadcast, a reduction to one
    rank or a message, of some.
    """
    sums = summed_waits(_waits(step, spans))
    return sorted((Waits(*pair, us) for pair, us in sums.items()), key=lambda wait: -wait.us)


def _waits(step: TracedStep, spans: Sequence[Span]) -> Iterator[tuple[int, int, float]]:
    """Yield every rank's wait at every such collective, with the rank that it waited for."""
    for transfers in step.meetings:
        arrivals = [step.arrivals[transfer] for transfer in transfers]
        for transfer, arrival in zip(transfers, arrivals, strict=True):
            awaited = _awaited(step, transfer, arrivals)
            last = max(awaited, key=lambda position: spans[position].end_us, default=arrival)
            waited_us = spans[transfer].start_us - spans[arrival].end_us
            yield step.ranks[step.roles[transfer].rank].rank, step.ranks[step.roles[last].rank].rank, waited_us


def _awaited(step: TracedStep, transfer: int, arrivals: Sequence[int]) -> list[int]:
    """Return the arrivals that a transfer waits for, itself or by a task in which all ranks meet."""
    before = set(step.tasks[transfer].after)
    before |= {arrival for position in before.difference(arrivals) for arrival in step.tasks[position].after}
    return [arrival for arrival in arrivals if arrival in before]


def collective_totals(step: TracedStep, spans: Sequence[Span]) -> list[CollectiveTotals]:
    """Return the collectives of a step, those that take the most time first."""
    totals: dict[tuple[str, str, str, int], list[float]] = {}
    for timed in timed_collectives(step):
        collective, position = timed.collective, timed.position
        part = traffic_of(collective, step.roles[position].step_pass, step.ranks[timed.rank].world_size)
        key = (collective.name, part, collective.group, timed.rank)
        entry = totals.setdefault(key, [0.0, 0.0, 0.0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += collective.size_bytes
        entry[2] += spans[position].duration_us
        if position in step.arrivals:
            entry[3] += spans[position].start_us - spans[step.arrivals[position]].end_us
            entry[4] += 1
    rows = [
        CollectiveTotals(name, part, group, rank, int(calls), size, us, waiting if joined else None)
        for (name, part, group, rank), (calls, size, us, waiting, joined) in totals.items()
    ]
    slowest: dict[tuple[str, str, str], CollectiveTotals] = {}
    for row in sorted(rows, key=lambda row: -row.us):
        slowest.setdefault((row.name, row.part, row.group), row)
    return list(slowest.values())
