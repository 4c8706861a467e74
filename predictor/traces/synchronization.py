"""What host threads wait for in calls that synchronize with the GPU, and what streams wait for of other streams.

Newer traces record it (``cuda_sync``): which stream, which recorded event. Of older ones it is inferred from the order
of the calls and from what ended while a thread waited.

Source: CUDA runtime API, "Stream Management", "Event Management" and "API synchronization behavior"; Kineto,
libkineto/src/CuptiActivity.cpp for the fields of ``cuda_sync``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from predictor.traces.drafts import ROOT, Drafts
from predictor.traces.events import UNKNOWN, Category, RankTrace, TraceEvent
from predictor.traces.local_graph import EdgeKind, TaskKind
from predictor.traces.step_events import StepEvents
from predictor.traces.streams import Stream

DEVICE_CALLS = frozenset(
    {"cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize", "cudaFree", "cudaFreeHost"}
)
STREAM_CALLS = frozenset({"cudaStreamSynchronize", "cuStreamSynchronize"})
EVENT_CALLS = frozenset({"cudaEventSynchronize", "cuEventSynchronize"})
WAIT_EVENT_CALLS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent"})
# What a call takes beside waiting at most: it ends this long after what it waited for at the latest.
RETURN_US = 100.0
# A launch that takes longer than this, behind so many tasks that have not ended, waits for room in the stream's queue.
# That holds about 1000 launches (measured: stackoverflow.com/questions/53970187). Half are asked for here, as traces
# miss what was launched before they began.
BLOCKED_US = 50.0
QUEUED = 512
RECENT = 16  # launches of a thread among which the one that a collective waits for is sought


class Idle(NamedTuple):
    """Time in which a thread waits, in µs from the start of the step.

    Attributes:
        start_us: since when.
        end_us: until when; not before ``start_us``, and equal to it where what it waits for had ended by then.
        kind: why.
        after: the drafts that it waits for.
        threads: rows of the threads that it waits for, each up to its last task by ``end_us``.
        call: position of the call that waits; UNKNOWN: none.
    """

    start_us: float
    end_us: float
    kind: EdgeKind
    after: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    call: int = UNKNOWN


class StreamWait(NamedTuple):
    """A task that waits for a task of another stream: drafts."""

    task: int
    before: int


@dataclass(slots=True)
class Synchronization:
    """What waits for what.

    Attributes:
        idle: by thread, when it waited, by start.
        stream_waits: between streams.
        unknown: calls that wait for something that the trace does not show.
    """

    idle: dict[int, list[Idle]] = field(default_factory=dict)
    stream_waits: list[StreamWait] = field(default_factory=list)
    unknown: int = 0


def cuda_name(call: str) -> str:
    """Return what CUDA calls a call of HIP.

    >>> cuda_name("hipStreamSynchronize")
    'cudaStreamSynchronize'
    """
    return "cuda" + call[3:] if call.startswith("hip") else call


def waiting_calls(trace: RankTrace, step: StepEvents) -> set[int]:
    """Return the positions of the runtime calls of a step that wait, or let a stream wait."""
    names = DEVICE_CALLS | STREAM_CALLS | EVENT_CALLS
    return {
        position
        for positions in step.host.values()
        for position in positions
        if trace.events[position].category is Category.RUNTIME and cuda_name(trace.events[position].name) in names
    }


class Synchronizer:
    """Finds what the calls of a step wait for."""

    def __init__(
        self,
        trace: RankTrace,
        step: StepEvents,
        drafts: Drafts,
        streams: Mapping[int, Stream],
        given: Mapping[int, float],
    ) -> None:
        """Prepare to look at the calls of a step.

        Args:
            trace: of the rank.
            step: of it.
            drafts: with the tasks of the streams.
            streams: of the step.
            given: when the host gave each task of them to the GPU.
        """
        self._given = given
        self._events = trace.events
        self._step = step
        self._drafts = drafts
        self._streams = streams
        self._numbers = {trace.rows[row].name: row for row in streams}
        self._calls = {
            event.correlation: position
            for position, event in enumerate(trace.events)
            if event.category is Category.RUNTIME and event.correlation != UNKNOWN
        }
        self._records = {before: after for before, after, kind in trace.arrows if kind == "sync"}
        self._launches = _launches_by_thread(trace, step, drafts, streams)

    def read(self) -> Synchronization:
        """Return what waits for what in the step."""
        result = Synchronization()
        copies = self._blocking_copies()
        full = self._full_queues()
        for row, positions in self._step.host.items():
            idle = []
            for position in positions:
                event = self._events[position]
                if event.category is not Category.RUNTIME:
                    continue
                name = cuda_name(event.name)
                if name in WAIT_EVENT_CALLS:
                    result.stream_waits += self._stream_waits(row, position)
                    continue
                if position in copies:
                    targets = [copies[position]]
                elif position in full:
                    targets = [full[position]]
                elif name in DEVICE_CALLS or name in STREAM_CALLS or name in EVENT_CALLS:
                    targets = self._targets(row, position, name)
                else:
                    continue
                idle.append(self._idle(position, targets))
                result.unknown += not idle[-1].after and name in EVENT_CALLS
            result.idle[row] = idle
        return result

    def _us(self, time_us: float) -> float:
        return round(time_us - self._step.start_us, 3)

    def _idle(self, position: int, targets: Iterable[int]) -> Idle:
        """Return the time in which a call waits for tasks; of those that outlast it by the trace none."""
        event = self._events[position]
        start, call_end = max(0.0, self._us(event.start_us)), self._us(event.end_us)
        tasks = self._drafts.tasks
        after = tuple(task for task in targets if task != ROOT and tasks[task].end_us <= call_end)
        start = max([start, *(self._given[task] for task in after if self._is_given_by(task, position))])
        ready = max([start, *(tasks[task].end_us for task in after)])
        return Idle(start, ready, EdgeKind.SYNC, after, call=position)

    def _is_given_by(self, task: int, call: int) -> bool:
        return task in self._given and self._step.launched_by.get(self._drafts.tasks[task].event) == call

    def _blocking_copies(self) -> dict[int, int]:
        """Return the copies that the calls that started them wait for: drafts by calls.

        Calls without « Async » wait, and copies from and to pageable memory that ended while the call ran.
        """
        copies = {}
        for stream in self._streams.values():
            for draft in stream.tasks:
                task = self._drafts.tasks[draft]
                call = self._step.launched_by.get(task.event, UNKNOWN)
                if task.kind is not TaskKind.COPY or call == UNKNOWN or "emcpy" not in self._events[call].name:
                    continue
                waits = "Async" not in self._events[call].name or "ageable" in task.name
                if waits and task.end_us <= self._us(self._events[call].end_us):
                    copies[call] = draft
        return copies

    def _full_queues(self) -> dict[int, int]:
        """Return the tasks that launches waited for because the queue of launches was full: drafts by calls.

        A call waits until the GPU has taken one more task from the queue, which it does when a task ends.
        """
        full = {}
        for row, stream in self._streams.items():
            for place, draft in enumerate(stream.tasks):
                call = self._step.launched_by.get(self._drafts.tasks[draft].event, UNKNOWN)
                if call == UNKNOWN or self._events[call].end_us - self._events[call].start_us < BLOCKED_US:
                    continue
                begin, end = self._us(self._events[call].start_us), self._us(self._events[call].end_us)
                behind = place - bisect_left(stream.tasks, begin, key=lambda task: self._drafts.tasks[task].end_us)
                awaited = self._drafts.last_by(row, end)
                ended = self._drafts.tasks[awaited].end_us
                if behind >= QUEUED and awaited != ROOT and max(begin, end - RETURN_US) <= ended:
                    full[call] = awaited
        return full

    def _targets(self, row: int, position: int, name: str) -> list[int]:
        """Return the last tasks that a synchronizing call waits for."""
        event = self._events[position]
        record = self._records.get(position, UNKNOWN)
        if name in DEVICE_CALLS:
            return [stream.last_launched_before(self._us(event.start_us)) for stream in self._streams.values()]
        if record != UNKNOWN:
            return [self._recorded(self._events[record], event, name in STREAM_CALLS)]
        if name in STREAM_CALLS:
            launches = self._launches.get(row, [])
            place = bisect_left(launches, (self._us(event.start_us), ROOT))
            if place and self._explains(launches[place - 1][1], event):
                return [launches[place - 1][1]]
        return self._ended_within(event)

    def _explains(self, draft: int, event: TraceEvent) -> bool:
        """Return whether a call ended as soon as it could after a task."""
        ready = max(self._drafts.tasks[draft].end_us, self._us(event.start_us))
        return 0.0 <= self._us(event.end_us) - ready <= RETURN_US

    def _recorded(self, record: TraceEvent, event: TraceEvent, is_stream: bool) -> int:
        """Return the task that a recorded wait is for."""
        name = str(record.args.get("stream" if is_stream else "wait_on_stream", UNKNOWN))
        if name not in self._numbers:
            return ROOT
        stream = self._streams[self._numbers[name]]
        return stream.last_launched_before(self._recorded_at(record, event, is_stream))

    def _recorded_at(self, record: TraceEvent, event: TraceEvent, is_stream: bool = False) -> float:
        """Return when the event that is waited for was recorded, or the time of the call where that is unknown."""
        number = record.args.get("wait_on_cuda_event_record_corr_id")
        call = self._calls.get(number, UNKNOWN) if isinstance(number, int) and not is_stream else UNKNOWN
        return self._us(self._events[call].start_us if call != UNKNOWN else event.start_us)

    def _ended_within(self, event: TraceEvent) -> list[int]:
        """Return the task that ended last while a call waited, if the call ended soon after it."""
        start, end = self._us(event.start_us), self._us(event.end_us)
        last = ROOT
        for row in self._streams:
            draft = self._drafts.last_by(row, end)
            task = self._drafts.tasks[draft]
            is_within = draft != ROOT and max(start, end - RETURN_US) <= task.end_us
            if is_within and (last == ROOT or task.end_us > self._drafts.tasks[last].end_us):
                last = draft
        return [last]

    def _stream_waits(self, row: int, position: int) -> Iterator[StreamWait]:
        """Yield what a call that lets a stream wait for an event adds."""
        event = self._events[position]
        called = self._us(event.start_us)
        record = self._records.get(position, UNKNOWN)
        if record != UNKNOWN:
            args = self._events[record].args
            waiting, awaited = str(args.get("stream")), str(args.get("wait_on_stream"))
            if waiting in self._numbers and awaited in self._numbers and waiting != awaited:
                task = self._streams[self._numbers[waiting]].first_launched_from(called)
                recorded = self._recorded_at(self._events[record], event)
                before = self._streams[self._numbers[awaited]].last_launched_before(recorded)
                if ROOT not in (task, before):
                    yield StreamWait(task, before)
            return
        yield from self._inferred_waits(row, called)

    def _inferred_waits(self, row: int, called: float) -> Iterator[StreamWait]:
        """Yield the waits that a call means of which the trace says neither stream nor event.

        The stream is that of the thread's next launch. What it waits for is the task launched last on another stream:
        by the same thread, if the stream is one of collectives, or else by any. A task that ended after the waiting one
        began cannot be it; then it is the last one of that stream that had ended.
        """
        launches = self._launches.get(row, [])
        place = bisect_left(launches, (called, ROOT))
        if place == len(launches):
            return
        task = launches[place][1]
        waiting = self._drafts.tasks[task]
        if waiting.kind is TaskKind.COLLECTIVE:
            candidates = launches[max(0, place - RECENT) : place]
        else:
            candidates = [
                (at, before)
                for other in self._streams.values()
                for at, before in [other.last_launch_before(called)]
                if before != ROOT
            ]
        tasks = self._drafts.tasks
        others = [(at, before) for at, before in candidates if tasks[before].row != waiting.row]
        if not others:
            return
        before = max(others)[1]
        if tasks[before].end_us > waiting.start_us:
            before = self._drafts.last_by(tasks[before].row, waiting.start_us)
        if before != ROOT:
            yield StreamWait(task, before)


def _launches_by_thread(
    trace: RankTrace, step: StepEvents, drafts: Drafts, streams: Mapping[int, Stream]
) -> dict[int, list[tuple[float, int]]]:
    """Return, by thread, when it launched which draft."""
    launches: dict[int, list[tuple[float, int]]] = {}
    for stream in streams.values():
        for draft in stream.tasks:
            call = step.launched_by.get(drafts.tasks[draft].event, UNKNOWN)
            if call != UNKNOWN:
                at = round(trace.events[call].start_us - step.start_us, 3)
                launches.setdefault(trace.events[call].row, []).append((at, draft))
    for of_thread in launches.values():
        of_thread.sort()
    return launches
