"""Dependencies between streams.

Older traces tell neither the stream nor the event of such a wait; there both are inferred from the order of calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from predictor.replay.files.events import Category, TraceEvent
from predictor.replay.graph.local_graph import TaskKind
from predictor.replay.graph.pending_tasks import ROOT
from predictor.replay.graph.sync_calls import WAIT_EVENT_CALLS, SyncCalls, cuda_name

RECENT = 16  # launches of a thread among which the one that a collective waits for is sought


class StreamWait(NamedTuple):
    """A task that waits for a task of another stream: pending."""

    task: int
    before: int


def stream_waits(calls: SyncCalls) -> list[StreamWait]:
    """Return what the streams of a step wait for of each other, by the calls that let them wait."""
    waits: list[StreamWait] = []
    for row, positions in calls.step.host.items():
        for position in positions:
            event = calls.events[position]
            if event.category is not Category.RUNTIME or cuda_name(event.name) not in WAIT_EVENT_CALLS:
                continue
            record = calls.records.get(position)
            if record is None:
                waits += _inferred(calls, row, calls.us(event.start_us))
            else:
                waits += _recorded(calls, record, event)
    return waits


def _recorded(calls: SyncCalls, record: TraceEvent, event: TraceEvent) -> Iterator[StreamWait]:
    """Yield the wait that a record tells."""
    waiting, awaited = calls.stream(record, "stream"), calls.stream(record, "wait_on_stream")
    if waiting is not None and awaited is not None and waiting is not awaited:
        task = waiting.first_launched_from(calls.us(event.start_us))
        before = awaited.last_launched_before(calls.recorded_us(record, event))
        if ROOT not in (task, before):
            yield StreamWait(task, before)


def _inferred(calls: SyncCalls, row: int, called_us: float) -> Iterator[StreamWait]:
    """Yield the waits that a call means of which the trace says neither stream nor event.

    The stream is that of the thread's next launch. What it waits for is the task launched last on another stream:
    by the same thread, if the stream is one of collectives, or else by any. A task that ended after the waiting one
    began cannot be it; then it is the last one of that stream that had ended.
    """
    launches = calls.launches.get(row, [])
    place = bisect_left(launches, (called_us, ROOT))
    if place == len(launches):
        return
    task = launches[place][1]
    waiting = calls.pending.tasks[task]
    if waiting.kind is TaskKind.COLLECTIVE:
        candidates = launches[max(0, place - RECENT) : place]
    else:
        candidates = [
            (at, before)
            for other in calls.streams.values()
            for at, before in [other.last_launch_before(called_us)]
            if before != ROOT
        ]
    tasks = calls.pending.tasks
    others = [(at, before) for at, before in candidates if tasks[before].row != waiting.row]
    if not others:
        return
    before = max(others)[1]
    if tasks[before].end_us > waiting.start_us:
        before = calls.pending.last_by(tasks[before].row, waiting.start_us)
    if before != ROOT:
        yield StreamWait(task, before)
