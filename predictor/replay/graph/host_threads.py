"""A thread's time, cut where something begins or ends on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN, Category, TraceEvent
from predictor.replay.graph.step_events import STEP, StepEvents

NAMED_CALL_US = 10.0  # a runtime call that neither starts anything nor waits has a task of its own from here on


class Segment(NamedTuple):
    """Part of a thread's time, in µs from the start of the step.

    Attributes:
        frame: position of the innermost event that it is in; UNKNOWN: between events.
    """

    start_us: float
    end_us: float
    frame: int


@dataclass(slots=True)
class Thread:
    """What a thread does in a step.

    Attributes:
        row: position in the rows of the trace.
        segments: its time from its first event to its last one, without holes; of the main thread the whole step.
        around: of each of its events, the one around it; UNKNOWN: none.
        frames: its events, by start, those that enclose others first.
    """

    row: int
    segments: list[Segment]
    around: dict[int, int]
    frames: list[int]


def read_thread(events: Sequence[TraceEvent], step: StepEvents, row: int, cutting: frozenset[int]) -> Thread:
    """Cut a thread's time in a step.

    Args:
        events: of the trace.
        step: the step's.
        row: of the thread.
        cutting: runtime calls that matter however short they are: those that start or wait.
    """
    frames = []
    for position in step.host[row]:
        event = events[position]
        if event.name.startswith(STEP):  # it holds the step, which is no work
            continue
        is_short = event.end_us - event.start_us < NAMED_CALL_US
        if event.category is not Category.RUNTIME or not is_short or position in cutting:
            frames.append(position)
    if row == step.main_row:
        begin, end = step.start_us, step.end_us
    else:
        begin = max(step.start_us, min((events[frame].start_us for frame in frames), default=step.start_us))
        end = min(step.end_us, max((events[frame].end_us for frame in frames), default=begin))
    around: dict[int, int] = {}
    segments = list(_cut(events, frames, begin, end, step.start_us, around))
    return Thread(row, segments, around, frames)


def split(segments: Sequence[Segment], times_us: Iterable[float]) -> list[Segment]:
    """Cut segments at times, in µs from the start of the step."""
    result = []
    times = sorted(set(times_us))
    place = 0
    for start, end, frame in segments:
        at = start
        while place < len(times) and times[place] < end:
            if times[place] > at:
                result.append(Segment(at, times[place], frame))
                at = times[place]
            place += 1
        result.append(Segment(at, end, frame))
    return result


def _cut(
    events: Sequence[TraceEvent],
    frames: Sequence[int],
    begin: float,
    end: float,
    zero: float,
    around: dict[int, int],
) -> Iterator[Segment]:
    """Yield the segments between two times; note in ``around`` what encloses what.

    An event that outlasts the one around it, by rounding, ends with it.
    """
    stack: list[tuple[int, float]] = [(UNKNOWN, end)]
    at = begin
    for frame in frames:
        start = max(events[frame].start_us, at)
        while len(stack) > 1 and stack[-1][1] <= start:
            inner, ends = stack.pop()
            if ends > at:
                yield Segment(round(at - zero, 3), round(ends - zero, 3), inner)
                at = ends
        if start > at:
            yield Segment(round(at - zero, 3), round(start - zero, 3), stack[-1][0])
            at = start
        around[frame] = stack[-1][0]
        stack.append((frame, min(max(events[frame].end_us, start), stack[-1][1])))
    while stack:
        inner, ends = stack.pop()
        if ends > at:
            yield Segment(round(at - zero, 3), round(ends - zero, 3), inner)
            at = ends
