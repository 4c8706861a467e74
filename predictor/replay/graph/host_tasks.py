"""Tasks of host threads: a thread's time without its waits, and the event that ended each wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from predictor.replay.files.events import UNKNOWN, TraceEvent
from predictor.replay.graph.host_threads import Segment, Thread
from predictor.replay.graph.local_graph import NO_OPERATOR, EdgeKind, TaskKind
from predictor.replay.graph.operators import OperatorTable
from predictor.replay.graph.pending_tasks import ROOT, PendingTask, PendingTasks
from predictor.replay.graph.synchronization import Idle

BETWEEN_EVENTS = "Python"


def merged(idle: Iterable[Idle]) -> list[Idle]:
    """Return waits by start; those that overlap are one, which waits for all that they wait for."""
    result: list[Idle] = []
    for wait in sorted(idle, key=lambda wait: (wait.start_us, wait.end_us)):
        if not result or wait.start_us >= result[-1].end_us:
            result.append(wait)
            continue
        last = result.pop()
        kind, call = (wait.kind, wait.call) if wait.call != UNKNOWN else (last.kind, last.call)
        end = max(last.end_us, wait.end_us)
        result.append(Idle(last.start_us, end, kind, last.after + wait.after, last.threads + wait.threads, call))
    return result


def add_thread(
    pending: PendingTasks, events: Sequence[TraceEvent], table: OperatorTable, thread: Thread, idle: Sequence[Idle]
) -> list[tuple[int, Idle]]:
    """Add the tasks of a thread, with edges between them only.

    Args:
        pending: that they are added to.
        events: of the trace.
        table: operators of the step.
        thread: to add.
        idle: when it waited, merged.

    Returns:
        The task that follows each wait, with the wait.
    """
    ends = []
    for segment, waits in _working(thread.segments, idle):
        call = next((wait.call for wait in reversed(waits) if wait.call != UNKNOWN), UNKNOWN)
        is_wait = segment.frame != UNKNOWN and segment.frame == call
        frame = segment.frame
        name = events[frame].name if frame != UNKNOWN else BETWEEN_EVENTS
        operator = table.of_event.get(frame, NO_OPERATOR)
        kind = TaskKind.WAIT if is_wait else TaskKind.HOST
        before = pending.rows[thread.row][-1] if pending.rows.get(thread.row) else ROOT
        task = pending.add(PendingTask(name, kind, thread.row, segment.start_us, segment.end_us, operator, frame))
        if not waits or before != ROOT or pending.tasks[ROOT].row == thread.row:
            pending.wait(task, before, EdgeKind.ROW, 0.0 if any(_explains(wait) for wait in waits) else None)
        ends += [(task, wait) for wait in waits]
    return ends


def _explains(wait: Idle) -> bool:
    return bool(wait.after or wait.threads)


def _working(segments: Sequence[Segment], idle: Sequence[Idle]) -> Iterator[tuple[Segment, list[Idle]]]:
    """Yield what is left of segments without waits, each part with the waits that end at its start or just before."""
    place = 0
    pending: list[Idle] = []
    for start, end, frame in segments:
        at = start
        while place < len(idle) and idle[place].start_us < end:
            wait = idle[place]
            if wait.start_us > at:
                yield Segment(at, wait.start_us, frame), pending
                pending = []
            if not pending or pending[-1] is not wait:
                pending.append(wait)
            at = max(at, wait.end_us)
            if wait.end_us >= end:
                break
            place += 1
        if at < end:
            yield Segment(at, end, frame), pending
            pending = []
