"""Collectives of a replayed step: how many, how large, how long, and how long ranks wait in them for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from predictor.replay.breakdown import traffic_of
from predictor.replay.traced_step import ADDED, TracedStep, pass_of
from predictor.timeline.spans import Span
from predictor.traces.local_graph import TaskKind


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


def collective_totals(step: TracedStep, spans: Sequence[Span]) -> list[CollectiveTotals]:
    """Return the collectives of a step, those that take the most time first."""
    totals: dict[tuple[str, str, str, int], list[float]] = {}
    places = step.places()
    for rank, local in enumerate(step.ranks):
        for collective in local.collectives:
            part = traffic_of(collective, pass_of(local, collective.task), local.world_size)
            position = places[rank][collective.task]
            entry = totals.setdefault((collective.name, part, collective.group, rank), [0.0, 0.0, 0.0, 0.0, 0.0])
            if not step.tasks[position].is_exclusive and not step.tasks[position].duration_us:
                continue  # regrouped into other buckets
            entry[0] += 1
            entry[1] += collective.size_bytes
            entry[2] += spans[position].duration_us
            if position in step.arrivals:
                entry[3] += spans[position].start_us - spans[step.arrivals[position]].end_us
                entry[4] += 1
    _add_new(step, spans, totals)
    rows = [
        CollectiveTotals(name, part, group, rank, int(calls), size, us, waiting if joined else None)
        for (name, part, group, rank), (calls, size, us, waiting, joined) in totals.items()
        if calls
    ]
    slowest: dict[tuple[str, str, str], CollectiveTotals] = {}
    for row in sorted(rows, key=lambda row: -row.us):
        slowest.setdefault((row.name, row.part, row.group), row)
    return list(slowest.values())


def _add_new(step: TracedStep, spans: Sequence[Span], totals: dict[tuple[str, str, str, int], list[float]]) -> None:
    """Count the collectives that a change made to those of the same name."""
    for position, role in enumerate(step.roles):
        if role.task != ADDED or role.kind is not TaskKind.COLLECTIVE:
            continue
        key = next(key for key in totals if key[0] == role.operator and key[3] == role.rank)
        size = step.tasks[position].details["size_bytes"]
        assert isinstance(size, int)
        totals[key][0] += 1
        totals[key][1] += size
        totals[key][2] += spans[position].duration_us
