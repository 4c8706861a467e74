"""Arrows between events: flow events, and runtime calls to the device events they start.

A launch is known by its correlation, which the call and what it started share; flow events repeat it in newer versions
and serve where the correlation is missing. A flow event has no event's name: it belongs to the event that begins with
it, or encloses it, on its row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from predictor.replay.files.events import ON_GPU, UNKNOWN, Arrow, Category, Row, TraceEvent

LAUNCH, SYNC, FORWARD_BACKWARD = "launch", "sync", "fwdbwd"
LAUNCHES = frozenset({"ac2g", "async_cpu_to_gpu", "async_gpu"})
FORWARD_BACKWARDS = frozenset({"fwdbwd", "fwd_bwd", "forward_backward"})


class Flow(NamedTuple):
    """An end of an arrow; its time is from the same origin as the events'."""

    is_start: bool
    kind: str
    number: str
    process: str
    thread: str
    at: float


def arrows_of(events: Sequence[TraceEvent], rows: Sequence[Row], flows: Sequence[Flow], first: float) -> list[Arrow]:
    """Return the arrows between events, by the position of what they point to.

    Args:
        events: by start, those that enclose others first.
        rows: of the events.
        flows: their ends, in any order.
        first: time of the first event, in the flows' time.
    """
    arrows = _launches(events)
    launched = {arrow.after for arrow in arrows}
    drawn = _drawn(events, rows, flows, first)
    arrows += [arrow for arrow in drawn if arrow.kind != LAUNCH or arrow.after not in launched]
    arrows.sort(key=lambda arrow: (arrow.after, arrow.before))
    return list(dict.fromkeys(arrows))


def _launches(events: Sequence[TraceEvent]) -> list[Arrow]:
    """Return the arrows from runtime calls to what has their correlation."""
    calls: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.correlation != UNKNOWN and event.category is Category.RUNTIME:
            calls.setdefault(event.correlation, position)
    arrows = []
    for position, event in enumerate(events):
        if event.correlation in calls and (event.category in ON_GPU or event.category is Category.SYNC):
            kind = SYNC if event.category is Category.SYNC else LAUNCH
            arrows.append(Arrow(calls[event.correlation], position, kind))
    return arrows


def _drawn(events: Sequence[TraceEvent], rows: Sequence[Row], flows: Sequence[Flow], first: float) -> list[Arrow]:
    """Return the arrows of flow events whose two ends belong to events."""
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        places[row.process, row.name].append(position)
    starts: dict[tuple[str, str], Flow] = {}
    ends: defaultdict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        if flow.is_start:
            starts[flow.kind, flow.number] = flow
        else:
            ends[flow.kind, flow.number].append(flow)
    pairs = [(starts[key], end) for key, targets in ends.items() if key in starts for end in targets]
    wanted = (
        {row for flow in (*starts.values(), *flows) for row in places[flow.process, flow.thread]} if pairs else set()
    )
    rooms = _by_row(events, wanted)
    arrows = []
    for start, end in pairs:
        before = _at(events, rooms, places[start.process, start.thread], start.at - first)
        after = _at(events, rooms, places[end.process, end.thread], end.at - first)
        pair = _alike(events, before, after)
        if pair is not None:
            kind = FORWARD_BACKWARD if start.kind in FORWARD_BACKWARDS else start.kind
            arrows.append(Arrow(*pair, LAUNCH if kind in LAUNCHES else kind))
    return arrows


class _RowEvents(NamedTuple):
    """Positions of a row's events, by their starts."""

    positions: list[int]
    starts: list[float]


def _by_row(events: Sequence[TraceEvent], wanted: Iterable[int]) -> dict[int, _RowEvents]:
    rooms = {row: _RowEvents([], []) for row in wanted}
    for position, event in enumerate(events):
        if event.row in rooms:
            rooms[event.row].positions.append(position)
            rooms[event.row].starts.append(event.start_us)
    return rooms


def _at(events: Sequence[TraceEvent], rooms: dict[int, _RowEvents], rows: Iterable[int], at: float) -> list[int]:
    """Return the events of a row that begin at a time, outermost first; else the innermost one that encloses it."""
    at = round(at, 3)
    for row in rows:
        room = rooms[row]
        last = bisect_right(room.starts, at)
        number = last
        while number and room.starts[number - 1] == at:
            number -= 1
        if number < last:
            return room.positions[number:last]
        for before in reversed(room.positions[max(0, last - 64) : last]):
            if events[before].end_us >= at:
                return [before]
    return []


def _alike(events: Sequence[TraceEvent], before: Sequence[int], after: Sequence[int]) -> tuple[int, int] | None:
    """Return the pair of events that an arrow connects: those of one sequence number, where several begin at once."""
    if not before or not after or before[0] == after[0]:
        return None
    for earlier in before:
        for later in after:
            if events[earlier].sequence == events[later].sequence != UNKNOWN:
                return earlier, later
    return before[0], after[0]
