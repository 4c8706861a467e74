"""Waits of host threads in calls that synchronize with the GPU.

Of traces that do not record it (``cuda_sync``) it is inferred from the order of the calls and from what ended while a
thread waited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from predictor.replay.files.events import UNKNOWN, Category, TraceEvent
from predictor.replay.graph.local_graph import EdgeKind, TaskKind
from predictor.replay.graph.pending_tasks import ROOT
from predictor.replay.graph.streams import Stream
from predictor.replay.graph.sync_calls import DEVICE_CALLS, EVENT_CALLS, STREAM_CALLS, SyncCalls, cuda_name

# What a call takes beside waiting at most: it ends this long after what it waited for at the latest.
RETURN_US = 100.0
CLOCKS_US = 20.0  # by which the clocks of host and GPU may differ (8 µs between a wait and its kernel on MI300X)
# What gives a stream work and takes longer than this, behind so many tasks that have not ended, waits for room in the
# stream's queue. Others take less (99 of 100: 9 to 27 µs in six of seven public traces). The queue holds about
# 1000 launches (measured: stackoverflow.com/questions/53970187). Half are asked for here, as traces miss what was
# launched before they began.
BLOCKED_US = 30.0
QUEUED = 512
QUEUES = ("Launch", "emcpyAsync", "emset", "EventRecord", "StreamWaitEvent")  # what calls that use it are named


class Idle(NamedTuple):
    """Time in which a thread waits, in µs from the start of the step.

    Attributes:
        start_us: since when.
        end_us: until when; not before ``start_us``, and equal to it where what it waits for had ended by then.
        kind: why.
        after: the pending that it waits for.
        threads: rows of the threads that it waits for, each up to its last task by ``end_us``.
        call: position of the call that waits; UNKNOWN: none.
    """

    start_us: float
    end_us: float
    kind: EdgeKind
    after: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    call: int = UNKNOWN


@dataclass(slots=True)
class Synchronization:
    """What threads wait for.

    Attributes:
        idle: by thread, when it waited, by start.
        unknown: calls that wait for something that the trace does not show.
        late_wakes: threads that began to work though no other one stopped just then; what woke them is unknown.
    """

    idle: dict[int, list[Idle]] = field(default_factory=dict)
    unknown: int = 0
    late_wakes: int = 0


class Synchronizer:
    """Finds what the calls of a step wait for."""

    def __init__(self, calls: SyncCalls, given: Mapping[int, float]) -> None:
        """Prepare to look at calls.

        Args:
            calls: of the step.
            given: when the host gave each task of its streams to the GPU.
        """
        self._calls = calls
        self._given = given
        self._events = calls.events
        self._tasks = calls.pending.tasks

    def read(self) -> Synchronization:
        """Return what waits for what in the step."""
        result = Synchronization()
        copies = self._blocking_copies()
        full = self._full_queues()
        for row, positions in self._calls.step.host.items():
            idle = []
            for position in positions:
                event = self._events[position]
                if event.category is not Category.RUNTIME:
                    continue
                name = cuda_name(event.name)
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

    def _idle(self, position: int, targets: Iterable[int]) -> Idle:
        """Return the time in which a call waits for tasks; of those that outlast it by the trace none."""
        event = self._events[position]
        start, call_end = max(0.0, self._calls.us(event.start_us)), self._calls.us(event.end_us)
        tasks = self._tasks
        after = tuple(task for task in targets if task != ROOT and tasks[task].end_us <= call_end)
        start = max([start, *(self._given[task] for task in after if self._is_given_by(task, position))])
        ready = max([start, *(tasks[task].end_us for task in after)])
        return Idle(start, ready, EdgeKind.SYNC, after, call=position)

    def _is_given_by(self, task: int, call: int) -> bool:
        return task in self._given and self._calls.step.launched_by.get(self._tasks[task].event) == call

    def _blocking_copies(self) -> dict[int, int]:
        """Return the copies that the calls that started them wait for: pending by calls.

        Calls without « Async » wait, and copies from and to pageable memory that ended while the call ran.
        """
        copies = {}
        for stream in self._calls.streams.values():
            for pending_task in stream.tasks:
                task = self._tasks[pending_task]
                call = self._calls.step.launched_by.get(task.event, UNKNOWN)
                if task.kind is not TaskKind.COPY or call == UNKNOWN or "emcpy" not in self._events[call].name:
                    continue
                waits = "Async" not in self._events[call].name or "ageable" in task.name
                if waits and task.end_us <= self._calls.us(self._events[call].end_us):
                    copies[call] = pending_task
        return copies

    def _full_queues(self) -> dict[int, int]:
        """Return the tasks that calls waited for because the queue of a stream was full: pending by calls.

        A call waits until the GPU has taken one more task from the queue, which it does when a task ends. What starts
        no task, such as the record of an event, is taken to be of the stream that the thread launches on next.
        """
        full = {}
        places = {
            pending_task: (row, at)
            for row, stream in self._calls.streams.items()
            for at, pending_task in enumerate(stream.tasks)
        }
        for thread, positions in self._calls.step.host.items():
            launches = self._calls.launches.get(thread, [])
            for position in positions:
                event = self._events[position]
                if event.category is not Category.RUNTIME or event.end_us - event.start_us < BLOCKED_US:
                    continue
                begin, end = self._calls.us(event.start_us), self._calls.us(event.end_us)
                following = bisect_left(launches, (begin, ROOT))
                if following == len(launches) or not any(word in event.name for word in QUEUES):
                    continue
                row, place = places[launches[following][1]]
                behind = place - bisect_left(
                    self._calls.streams[row].tasks, begin, key=lambda task: self._tasks[task].end_us
                )
                awaited = self._calls.pending.last_by(row, end)
                if behind >= QUEUED and awaited != ROOT and max(begin, end - RETURN_US) <= self._tasks[awaited].end_us:
                    full[position] = awaited
        return full

    def _targets(self, row: int, position: int, name: str) -> list[int]:
        """Return the last tasks that a synchronizing call waits for."""
        event = self._events[position]
        record = self._calls.records.get(position)
        if name in DEVICE_CALLS:
            return [self._last_given(stream, event) for stream in self._calls.streams_of_device(record)]
        if record is not None and name in STREAM_CALLS:
            stream = self._calls.stream(record, "stream")
            return [] if stream is None else [self._last_given(stream, event)]
        if record is not None:
            stream = self._calls.stream(record, "wait_on_stream")
            return [] if stream is None else [stream.last_launched_before(self._calls.recorded_us(record, event))]
        if name in STREAM_CALLS:
            launches = self._calls.launches.get(row, [])
            place = bisect_left(launches, (self._calls.us(event.start_us), ROOT))
            if place and self._explains(launches[place - 1][1], event):
                return [launches[place - 1][1]]
        return self._ended_within(event)

    def _last_given(self, stream: Stream, event: TraceEvent) -> int:
        """Return the task that a call waits for which waits for all that a stream was given; ROOT: none.

        One that ends after the call was not awaited if nothing says when it was launched; if it ends no later than by
        what the clocks may differ, the one before it stands for it.
        """
        place, end = stream.count_launched_before(self._calls.us(event.start_us)), self._calls.us(event.end_us)
        while place:
            pending_task = stream.tasks[place - 1]
            task = self._tasks[pending_task]
            is_known = task.event == UNKNOWN or task.event in self._calls.step.launched_by
            if task.end_us <= end or (is_known and task.end_us > end + CLOCKS_US):
                return pending_task
            place -= 1
        return ROOT

    def _explains(self, pending_task: int, event: TraceEvent) -> bool:
        """Return whether a call ended as soon as it could after a task."""
        ready = max(self._tasks[pending_task].end_us, self._calls.us(event.start_us))
        return 0.0 <= self._calls.us(event.end_us) - ready <= RETURN_US

    def _ended_within(self, event: TraceEvent) -> list[int]:
        """Return the task that ended last while a call waited, if the call ended soon after it."""
        start, end = self._calls.us(event.start_us), self._calls.us(event.end_us)
        last = ROOT
        for row in self._calls.streams:
            pending_task = self._calls.pending.last_by(row, end)
            task = self._tasks[pending_task]
            is_within = pending_task != ROOT and max(start, end - RETURN_US) <= task.end_us
            if is_within and (last == ROOT or task.end_us > self._tasks[last].end_us):
                last = pending_task
        return [last]
