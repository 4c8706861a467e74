"""Collectives that threads of gloo, MPI or UCC run, and the threads that wait for them.

``work.wait()`` records nothing. A thread that gave a collective and then records nothing until shortly after the
collective ended has waited for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from predictor.replay.files.events import UNKNOWN, RankTrace
from predictor.replay.graph.host_threads import Segment, Thread
from predictor.replay.graph.local_graph import CARRIED, NO_OPERATOR, EdgeKind, TaskKind
from predictor.replay.graph.operators import OperatorTable, is_backward
from predictor.replay.graph.pending_tasks import ROOT, PendingTask, PendingTasks
from predictor.replay.graph.step_events import StepEvents
from predictor.replay.graph.synchronization import Idle

RESUME_US = 1000.0  # a thread that goes on this long after a collective ended was not waiting for it
LEAST_WAIT_US = 20.0  # time between events that is shorter is work


def add_worker_edges(pending: PendingTasks, trace: RankTrace, step: StepEvents, tasks: Sequence[int]) -> None:
    """Let the collectives of workers wait for their threads and for the operators that gave them.

    Whichever ended last is the cause. Where the trace has no operator, the main thread gave the collective.
    """
    for task in tasks:
        start = pending.tasks[task].start_us
        call = step.launched_by.get(pending.tasks[task].event, UNKNOWN)
        row, given_us, kind = step.main_row, start, EdgeKind.WAKE
        if call != UNKNOWN:
            event = trace.events[call]
            row, given_us, kind = event.row, round(event.start_us - step.start_us, 3), EdgeKind.LAUNCH
        given, before = pending.last_by(row, min(start, given_us)), pending.before(task)
        is_behind = before != ROOT and pending.tasks[before].end_us >= pending.tasks[given].end_us
        if before != ROOT:
            pending.wait(task, before, EdgeKind.ROW, None if is_behind else 0.0)
        pending.wait(task, given, kind, 0.0 if is_behind else None)


def add_workers(pending: PendingTasks, trace: RankTrace, step: StepEvents) -> list[int]:
    """Add the collectives of workers' threads, without edges, and return them."""
    tasks = []
    for row in sorted({*step.workers, *step.carried_us}):
        carried = step.carried_us.get(row, 0.0)
        if carried and not trace.rows[row].is_gpu:
            pending.add(PendingTask(CARRIED, TaskKind.COLLECTIVE, row, 0.0, carried))
        end = carried
        for position in step.workers.get(row, ()):
            event = trace.events[position]
            start = max(end, round(event.start_us - step.start_us, 3))
            end = max(start, round(event.end_us - step.start_us, 3))
            tasks.append(pending.add(PendingTask(event.name, TaskKind.COLLECTIVE, row, start, end, event=position)))
    return tasks


def waits_for_workers(
    pending: PendingTasks, trace: RankTrace, step: StepEvents, threads: Sequence[Thread], table: OperatorTable
) -> dict[int, list[Idle]]:
    """Return, by thread, when it waited for collectives of workers.

    What DDP's reducer gives during a backward pass it awaits after it, so that pauses before are no waits for it.
    """
    idle: defaultdict[int, list[Idle]] = defaultdict(list)
    given: defaultdict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for task in (task for row in step.workers for task in pending.rows[row]):
        call = step.launched_by.get(pending.tasks[task].event, UNKNOWN)
        if call != UNKNOWN:
            awaited_us = _awaited_from(trace, step, table, call)
            given[trace.events[call].row].append((awaited_us, pending.tasks[task].end_us, task))
    for thread in threads:
        for segment in thread.segments if given[thread.row] else ():
            if segment.end_us - segment.start_us < LEAST_WAIT_US:
                continue
            tasks = [
                (end, task)
                for awaited_us, end, task in given[thread.row]
                if awaited_us <= segment.start_us and _ends_wait(segment, end)
            ]
            if tasks:
                waits = Idle(segment.start_us, max(tasks)[0], EdgeKind.SYNC, tuple(task for _, task in tasks))
                idle[thread.row].append(waits)
    return idle


def _ends_wait(segment: Segment, end_us: float) -> bool:
    """Return whether a pause of a thread was a wait for what ended then."""
    return segment.start_us < end_us <= segment.end_us <= end_us + RESUME_US


def _awaited_from(trace: RankTrace, step: StepEvents, table: OperatorTable, call: int) -> float:
    """Return when a thread may begin to wait for a collective, in µs from the start of the step.

    That is when its call has returned, and of one that DDP's reducer gave when the engine's last operator has ended.
    """
    end = trace.events[call].end_us
    row = trace.events[call].row
    operator = table.of_event.get(call, NO_OPERATOR)
    if operator != NO_OPERATOR and table.passes[operator] == "backward" and table.has_reducer:
        for later in range(operator + 1, len(table.events)):
            if table.rows[later] != row or table.parents[later] != NO_OPERATOR:
                continue
            event = trace.events[table.events[later]]
            if table.passes[later] != "backward":
                break
            if is_backward(event):
                end = event.end_us
    return round(end - step.start_us, 3)


def join_workers(
    pending: PendingTasks, trace: RankTrace, step: StepEvents, table: OperatorTable, tasks: Iterable[int]
) -> None:
    """Let the threads wait, after a backward pass, for its collectives that had ended by then."""
    for task in tasks:
        call = step.launched_by.get(pending.tasks[task].event, UNKNOWN)
        operator = table.of_event.get(call, NO_OPERATOR)
        if operator == NO_OPERATOR or table.passes[operator] != "backward":
            continue
        joined = max(pending.tasks[task].end_us, _awaited_from(trace, step, table, call))
        after = pending.first_from(trace.events[call].row, joined)
        if after != ROOT:
            pending.wait(after, task, EdgeKind.SYNC, 0.0)
