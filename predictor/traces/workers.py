"""Collectives that threads of gloo, MPI or UCC run, and the threads that wait for them.

``work.wait()`` records nothing. A thread that gave a collective and then records nothing until shortly after the
collective ended has waited for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from predictor.traces.drafts import ROOT, Draft, Drafts
from predictor.traces.events import UNKNOWN, RankTrace
from predictor.traces.host_threads import Segment, Thread
from predictor.traces.local_graph import EdgeKind, TaskKind
from predictor.traces.step_events import StepEvents
from predictor.traces.streams import CARRIED
from predictor.traces.synchronization import Idle

RESUME_US = 1000.0  # a thread that goes on this long after a collective ended was not waiting for it
LEAST_WAIT_US = 20.0  # time between events that is shorter is work


def add_worker_edges(drafts: Drafts, trace: RankTrace, step: StepEvents, tasks: Sequence[int]) -> None:
    """Let the collectives of workers wait for their threads and for the operators that gave them.

    Whichever ended last is the cause. Where the trace has no operator, the main thread gave the collective.
    """
    for task in tasks:
        start = drafts.tasks[task].start_us
        call = step.launched_by.get(drafts.tasks[task].event, UNKNOWN)
        row, given_us, kind = step.main_row, start, EdgeKind.WAKE
        if call != UNKNOWN:
            event = trace.events[call]
            row, given_us, kind = event.row, round(event.start_us - step.start_us, 3), EdgeKind.LAUNCH
        given, before = drafts.last_by(row, min(start, given_us)), drafts.before(task)
        is_behind = before != ROOT and drafts.tasks[before].end_us >= drafts.tasks[given].end_us
        if before != ROOT:
            drafts.wait(task, before, EdgeKind.ROW, None if is_behind else 0.0)
        drafts.wait(task, given, kind, 0.0 if is_behind else None)


def add_workers(drafts: Drafts, trace: RankTrace, step: StepEvents) -> list[int]:
    """Add the collectives of workers' threads, without edges, and return them."""
    tasks = []
    for row in sorted({*step.workers, *step.carried_us}):
        carried = step.carried_us.get(row, 0.0)
        if carried and not trace.rows[row].is_gpu:
            drafts.add(Draft(CARRIED, TaskKind.COLLECTIVE, row, 0.0, round(carried, 3)))
        end = carried
        for position in step.workers.get(row, ()):
            event = trace.events[position]
            start = max(end, round(event.start_us - step.start_us, 3))
            end = max(start, round(event.end_us - step.start_us, 3))
            tasks.append(drafts.add(Draft(event.name, TaskKind.COLLECTIVE, row, start, end, event=position)))
    return tasks


def waits_for_workers(
    drafts: Drafts, trace: RankTrace, step: StepEvents, threads: Sequence[Thread]
) -> dict[int, list[Idle]]:
    """Return, by thread, when it waited for collectives of workers."""
    idle: defaultdict[int, list[Idle]] = defaultdict(list)
    given = []
    for row in step.workers:
        for task in drafts.rows[row]:
            call = step.launched_by.get(drafts.tasks[task].event, UNKNOWN)
            if call != UNKNOWN:
                event = trace.events[call]
                given.append((round(event.end_us - step.start_us, 3), drafts.tasks[task].end_us, event.row, task))
    for thread in threads:
        for segment in thread.segments:
            if segment.end_us - segment.start_us < LEAST_WAIT_US:
                continue
            tasks = [
                (end, task)
                for called, end, row, task in given
                if called <= segment.start_us and _ends_wait(segment, end) and row == thread.row
            ]
            if tasks:
                end = max(tasks)[0]
                idle[thread.row].append(Idle(segment.start_us, end, EdgeKind.SYNC, tuple(task for _, task in tasks)))
    return idle


def _ends_wait(segment: Segment, end_us: float) -> bool:
    return segment.start_us < end_us <= segment.end_us <= end_us + RESUME_US
