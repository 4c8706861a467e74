"""Dependencies of each GPU task: its launch, the task before it on its stream, tasks of other streams.

A trace shows when a task began, not which of these let it begin. Each of them would have let it begin at its end plus
what the GPU typically takes; the last of these is taken for the cause, and its edge takes the time that was measured.
The other edges take the typical time, or less where the trace shows less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN, RankTrace
from predictor.replay.graph.local_graph import EdgeKind
from predictor.replay.graph.pending_tasks import ROOT, PendingTasks
from predictor.replay.graph.step_events import StepEvents
from predictor.replay.graph.stream_waits import StreamWait
from predictor.replay.graph.streams import LATE_US, Latencies, Stream

JUST_US = 10.0  # a task that began late waited for one of another stream that ended this shortly before


class Cause(NamedTuple):
    """What a task may have waited for.

    Attributes:
        end_us: when it had ended, or the launch was given.
        task: a pending one.
        kind: of the edge.
        typical_us: what the GPU typically takes from then until the task starts.
    """

    end_us: float
    task: int
    kind: EdgeKind
    typical_us: float


@dataclass(slots=True)
class StreamEdges:
    """What was found out.

    Attributes:
        inferred: tasks that waited for another stream though no call says so.
        contended: tasks that began late while another stream had the GPU.
        unexplained: tasks that began late for no visible reason.
        unexplained_us: by how much in all.
    """

    inferred: int = 0
    contended: int = 0
    unexplained: int = 0
    unexplained_us: float = 0.0


def add_stream_edges(
    pending: PendingTasks,
    trace: RankTrace,
    step: StepEvents,
    streams: Mapping[int, Stream],
    waits: Iterable[StreamWait],
    given: Mapping[int, float],
    latencies: Latencies,
) -> StreamEdges:
    """Add the edges of all GPU tasks of a step.

    Args:
        pending: with the tasks of threads and streams.
        trace: of the rank.
        step: of it.
        streams: of the step.
        waits: between streams.
        given: when the host gave each task to the GPU.
        latencies: that are typical.
    """
    awaited: defaultdict[int, list[int]] = defaultdict(list)
    for task, before in waits:
        awaited[task].append(before)
    facts = StreamEdges()
    for row, stream in streams.items():
        lanes = {pending.tasks[task].row for task in stream.tasks} | {row}
        others = [other for other in streams if other != row]
        for task in stream.tasks:
            causes = []
            before = _before(pending, task, lanes)
            if pending.tasks[task].event == UNKNOWN:  # of an earlier step
                pending.wait(task, before, EdgeKind.ROW)
                continue
            if before != ROOT:
                causes.append(Cause(pending.tasks[before].end_us, before, EdgeKind.ROW, latencies.next_us))
            call = step.launched_by.get(pending.tasks[task].event, UNKNOWN)
            if call != UNKNOWN:
                launcher = pending.last_by(trace.events[call].row, given[task])
                causes.append(Cause(given[task], launcher, EdgeKind.LAUNCH, latencies.launch_us))
            causes += [
                Cause(pending.tasks[other].end_us, other, EdgeKind.EVENT, latencies.next_us)
                for other in awaited.get(task, ())
                if pending.tasks[other].end_us <= pending.tasks[task].start_us
            ]
            _add(pending, task, causes, others, latencies, facts)
    return facts


def _before(pending: PendingTasks, task: int, lanes: Iterable[int]) -> int:
    """Return the last task of the lanes of a stream that ended before a task began; ROOT: none."""
    last = ROOT
    for lane in lanes:
        own = lane == pending.tasks[task].row
        before = pending.before(task) if own else pending.last_by(lane, pending.tasks[task].start_us)
        if before not in (ROOT, task) and (last == ROOT or pending.tasks[before].end_us > pending.tasks[last].end_us):
            last = before
    return last


def _add(
    pending: PendingTasks,
    task: int,
    causes: list[Cause],
    others: Iterable[int],
    latencies: Latencies,
    facts: StreamEdges,
) -> None:
    start = pending.tasks[task].start_us
    late = start - max((cause.end_us + cause.typical_us for cause in causes), default=0.0)
    if late > LATE_US:
        for row in others:
            before = pending.last_by(row, start)
            if before != ROOT and start - pending.tasks[before].end_us <= JUST_US:
                causes.append(Cause(pending.tasks[before].end_us, before, EdgeKind.EVENT, latencies.next_us))
                late = 0.0
                facts.inferred += 1
        if late and any(pending.runs(row, start) for row in others):
            facts.contended += 1
        elif late:
            facts.unexplained += 1
            facts.unexplained_us += late
    if not causes:
        pending.wait(task, ROOT, EdgeKind.ROW)
        return
    last = max(causes, key=lambda cause: cause.end_us + cause.typical_us)
    for cause in causes:
        pending.wait(task, cause.task, cause.kind, None if cause is last else cause.typical_us)
