"""Collectives of a replayed step: how many, how large, how long, and how long ranks wait in them for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from predictor.replay.breakdown import traffic_of
from predictor.replay.collective_times import timed_collectives
from predictor.replay.traced_step import TracedStep
from predictor.timeline.spans import Span
from predictor.traces.global_replay import summed_waits


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
    """Return who waited for whom in the collectives that several traced ranks share, the longest first."""
    sums = summed_waits(_waits(step, spans))
    return sorted((Waits(*pair, us) for pair, us in sums.items()), key=lambda wait: -wait.us)


def _waits(step: TracedStep, spans: Sequence[Span]) -> Iterator[tuple[int, int, float]]:
    """Yield every rank's wait at every such collective, with the rank that came last."""
    for transfers in step.meetings:
        arrived = [spans[step.arrivals[transfer]].end_us for transfer in transfers]
        ranks = [step.ranks[step.roles[transfer].rank].rank for transfer in transfers]
        last = ranks[arrived.index(max(arrived))]
        for transfer, rank, since in zip(transfers, ranks, arrived, strict=True):
            yield rank, last, spans[transfer].start_us - since


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
