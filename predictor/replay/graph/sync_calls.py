"""Calls that synchronize threads and streams with a GPU, as traces record them.

Newer traces record a wait (``cuda_sync``): which stream, which recorded event.

Source: CUDA runtime API, "Stream Management", "Event Management" and "API synchronization behavior"; Kineto,
libkineto/src/CuptiActivity.cpp for the fields of ``cuda_sync``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.replay.files.events import UNKNOWN, Category, RankTrace, TraceEvent
from predictor.replay.graph.pending_tasks import PendingTasks
from predictor.replay.graph.step_events import StepEvents
from predictor.replay.graph.streams import Stream

DEVICE_CALLS = frozenset(
    {"cudaDeviceSynchronize", "cudaThreadSynchronize", "cuCtxSynchronize", "cudaFree", "cudaFreeHost"}
)
STREAM_CALLS = frozenset({"cudaStreamSynchronize", "cuStreamSynchronize"})
EVENT_CALLS = frozenset({"cudaEventSynchronize", "cuEventSynchronize"})
VARIANT = re.compile(r"_(ptsz|ptds|spt|v\d+)$")
WAIT_EVENT_CALLS = frozenset({"cudaStreamWaitEvent", "cuStreamWaitEvent"})


def cuda_name(call: str) -> str:
    """Return what CUDA calls a call of HIP, and a variant for another default stream or of another version.

    >>> cuda_name("hipStreamSynchronize_spt")
    'cudaStreamSynchronize'
    """
    name = VARIANT.sub("", call)
    return "cuda" + name[3:] if name.startswith("hip") else name


def waiting_calls(trace: RankTrace, step: StepEvents) -> set[int]:
    """Return the positions of the runtime calls of a step that wait, or let a stream wait."""
    names = DEVICE_CALLS | STREAM_CALLS | EVENT_CALLS
    return {
        position
        for positions in step.host.values()
        for position in positions
        if trace.events[position].category is Category.RUNTIME and cuda_name(trace.events[position].name) in names
    }


class SyncCalls:
    """The calls of a step, its streams, and what the trace records of waits.

    Attributes:
        events: of the trace.
        step: of it.
        pending: with the tasks of the streams.
        streams: of the step.
        records: the event that records its wait, by the call's position.
        launches: by thread, when it launched which pending task.
    """

    def __init__(
        self, trace: RankTrace, step: StepEvents, pending: PendingTasks, streams: Mapping[int, Stream]
    ) -> None:
        """Gather what the trace says."""
        self.events = trace.events
        self.step = step
        self.pending = pending
        self.streams = streams
        self.records = {before: trace.events[after] for before, after, kind in trace.arrows if kind == "sync"}
        self.launches = _launches_by_thread(trace, step, pending, streams)
        self._rows = trace.rows
        self._numbers = {(trace.rows[row].process, trace.rows[row].name): row for row in streams}
        self._calls = {
            event.correlation: position
            for position, event in enumerate(trace.events)
            if event.category is Category.RUNTIME and event.correlation != UNKNOWN
        }

    def us(self, time_us: float) -> float:
        """Return a time of the trace in µs from the start of the step."""
        return round(time_us - self.step.start_us, 3)

    def stream(self, record: TraceEvent, key: str) -> Stream | None:
        """Return the stream, of the device that a record is of, with the number that it has under a key."""
        row = self._numbers.get((self._rows[record.row].process, str(record.args.get(key))))
        return None if row is None else self.streams[row]

    def streams_of_device(self, record: TraceEvent | None) -> list[Stream]:
        """Return the streams of the device that a record is of; without a record all."""
        device = None if record is None else self._rows[record.row].process
        return [stream for row, stream in self.streams.items() if device in (None, self._rows[row].process)]

    def recorded_us(self, record: TraceEvent, call: TraceEvent) -> float:
        """Return when the event that a call waits for was recorded; the time of the call where that is unknown."""
        number = record.args.get("wait_on_cuda_event_record_corr_id")
        position = self._calls.get(number, UNKNOWN) if isinstance(number, int) else UNKNOWN
        return self.us(self.events[position].start_us if position != UNKNOWN else call.start_us)


def _launches_by_thread(
    trace: RankTrace, step: StepEvents, pending: PendingTasks, streams: Mapping[int, Stream]
) -> dict[int, list[tuple[float, int]]]:
    """Return, by thread, when it launched which pending task."""
    launches: dict[int, list[tuple[float, int]]] = {}
    for stream in streams.values():
        for pending_task in stream.tasks:
            call = step.launched_by.get(pending.tasks[pending_task].event, UNKNOWN)
            if call != UNKNOWN:
                at = round(trace.events[call].start_us - step.start_us, 3)
                launches.setdefault(trace.events[call].row, []).append((at, pending_task))
    for of_thread in launches.values():
        of_thread.sort()
    return launches
