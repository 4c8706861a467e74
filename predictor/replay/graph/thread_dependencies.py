"""Cross-thread dependencies on the host: idle time of a thread that ends with the work of another.

Autograd's threads are, until a backward pass is handed to them, and the thread that called ``backward()``, until they
return; workers are between what they are given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN, TraceEvent
from predictor.replay.graph.host_threads import Segment, Thread
from predictor.replay.graph.local_graph import EdgeKind
from predictor.replay.graph.operators import is_backward
from predictor.replay.graph.step_events import StepEvents
from predictor.replay.graph.synchronization import Idle

BETWEEN_US = 50.0  # a thread that is not autograd's and records nothing for longer is taken to be idle
MOSTLY = 0.5  # a thread waits for another one's burst if it does nothing itself during this share of it


class Burst(NamedTuple):
    """Time in which a thread works without being idle, in µs from the start of the step."""

    start_us: float
    end_us: float


def is_engine(events: Sequence[TraceEvent], step: StepEvents, thread: Thread) -> bool:
    """Return whether autograd's engine runs on a thread beside the main one."""
    outermost = (frame for frame in thread.frames if thread.around[frame] == UNKNOWN)
    return thread.row != step.main_row and any(is_backward(events[frame]) for frame in outermost)


def idle_until_woken(
    events: Sequence[TraceEvent], step: StepEvents, threads: Sequence[Thread]
) -> dict[int, list[Idle]]:
    """Return, by thread, the idle times between bursts, the one before the first burst included.

    A thread beside the main one is idle while nothing is recorded on it and the main thread begins something, and
    before its first event. It is woken by the main thread. A thread that records nothing while autograd's thread works
    waits for it.
    """
    idle: dict[int, list[Idle]] = {thread.row: [] for thread in threads}
    callers = [thread for thread in threads if not is_engine(events, step, thread)]
    callers.sort(key=lambda thread: thread.row != step.main_row)
    main = callers[0] if callers and callers[0].row == step.main_row else None
    begun = [] if main is None else sorted(segment.start_us for segment in main.segments if segment.frame != UNKNOWN)
    for thread in threads:
        if thread.row == step.main_row or not thread.segments:
            continue
        engine = thread not in callers
        bursts = _bursts(thread, begun, engine)
        woken = 0.0
        for burst in bursts:
            caller = _caller(callers, burst) if engine else None
            source = caller[0].row if caller else step.main_row
            idle[thread.row].append(Idle(woken, burst.start_us, EdgeKind.WAKE, threads=(source,)))
            woken = burst.end_us
            if caller is not None:
                back = max(burst.start_us, _last_by(thread, caller[1]))
                idle[caller[0].row].append(Idle(burst.start_us, back, EdgeKind.WAKE, threads=(thread.row,)))
    return idle


def _bursts(thread: Thread, begun: Sequence[float], engine: bool) -> list[Burst]:
    """Return when a thread works.

    Args:
        thread: beside the main one.
        begun: when the main thread began something.
        engine: it is one of autograd's.
    """
    bursts = []
    start = thread.segments[0].start_us
    for segment in thread.segments:
        if segment.frame != UNKNOWN:
            continue
        main_works = bisect_left(begun, segment.end_us) > bisect_right(begun, segment.start_us)
        is_long = segment.end_us - segment.start_us > BETWEEN_US
        if is_long and (main_works or not engine):
            bursts.append(Burst(start, segment.start_us))
            start = segment.end_us
    bursts.append(Burst(start, thread.segments[-1].end_us))
    return bursts


def _caller(callers: Sequence[Thread], burst: Burst) -> tuple[Thread, float] | None:
    """Return the thread that does nothing during most of a burst, and until when; None where all work."""
    for thread in callers:
        segment = _at(thread, burst.start_us)
        if segment is None:
            continue
        until = segment.end_us
        if until - burst.start_us >= MOSTLY * (burst.end_us - burst.start_us):
            return thread, until
    return None


def _at(thread: Thread, time_us: float) -> Segment | None:
    """Return the segment of a thread at a time."""
    place = bisect_right(thread.segments, time_us, key=lambda segment: segment.start_us) - 1
    if place < 0 or thread.segments[place].end_us <= time_us:
        return None
    return thread.segments[place]


def _last_by(thread: Thread, time_us: float) -> float:
    """Return when the last segment of a thread ends that has ended by a time."""
    place = bisect_right(thread.segments, time_us, key=lambda segment: segment.end_us)
    return thread.segments[place - 1].end_us
