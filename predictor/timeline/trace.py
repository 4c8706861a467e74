"""A predicted step as Chrome trace-event JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Every stage is a process, every stream of it a thread: slots, messages, gradient reduction, optimizer.

Source of the format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
complete events ("X") with ``ts`` and ``dur`` in microseconds, which nest by time within a thread; metadata ("M").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from predictor.timeline.record import MessageTime, SlotTime
from predictor.timeline.schedules import FORWARD, Pass
from predictor.timeline.step_end import end_of_step

RECOMPUTE = "recompute"
NAMES = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHT: "weight gradient"}


class Stream(StrEnum):
    """A row of a stage, in the order in which the rows stand."""

    COMPUTE = "compute"
    SEND = "pipeline send"
    RECEIVE = "pipeline receive"
    REDUCTION = "data-parallel traffic"
    OPTIMIZER = "optimizer"


class Piece(NamedTuple):
    """Something besides slots and messages that one stage does."""

    stage: int
    stream: Stream
    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class StepTrace:
    """Everything that happens in one step; times in microseconds from its start.

    Attributes:
        step_us: when the step is over.
        slots: as ``record`` found them.
        messages: likewise.
        blocking: messages keep their stages from computing.
        ends: gradient reductions, optimizers and what else is neither slot nor message; ``step_ends`` makes them.
        parts: what a slot is made of, one after the other, as (name, duration), per (stage, pass, chunk); they may
            leave some of the slot unnamed. RECOMPUTE is the name of recomputation.
    """

    title: str
    step_us: float
    slots: Sequence[SlotTime]
    messages: Sequence[MessageTime] = ()
    blocking: bool = False
    ends: Sequence[Piece] = ()
    parts: Mapping[tuple[int, Pass, int], Sequence[tuple[str, float]]] = field(default_factory=dict)

    @property
    def num_stages(self) -> int:
        """Return the number of pipeline stages."""
        return 1 + max(slot.stage for slot in self.slots)

    @property
    def num_chunks(self) -> int:
        """Return the number of model chunks per stage."""
        return 1 + max(slot.chunk for slot in self.slots)


def step_ends(
    finished: Sequence[float],
    reductions: Sequence[float],
    exposed: Sequence[float],
    optimizers: Sequence[float],
    gathers: Sequence[float],
) -> list[Piece]:
    """Return how every stage ends a step.

    Each stage's gradient reduction ends when what computing does not hide of it has followed the last slot; all
    optimizers wait for the last reduction, as the norm of the gradients needs all of them.

    Args:
        finished: when each stage ends its last slot.
        reductions: whole gradient reduction, per stage.
        exposed: the part of it that the step waits for.
        optimizers: per stage.
        gathers: what gathers parameters behind the optimizer, per stage.
    """
    closing = max(update + gather for update, gather in zip(optimizers, gathers, strict=True))
    reduced, critical, _ = end_of_step(finished, exposed, closing)
    start = reduced[critical]
    pieces = []
    for stage, end in enumerate(reduced):
        begin = max(0.0, end - max(reductions[stage], exposed[stage]))
        stepped = start + optimizers[stage]
        pieces += [
            Piece(stage, Stream.REDUCTION, "gradient reduction", begin, end),
            Piece(stage, Stream.OPTIMIZER, "optimizer", start, stepped),
            Piece(stage, Stream.REDUCTION, "parameter gather", stepped, stepped + gathers[stage]),
        ]
    return [piece for piece in pieces if piece.end > piece.start]


class _Slice(NamedTuple):
    start: float
    end: float
    name: str
    details: dict[str, object]
    parts: Sequence[tuple[str, float]] = ()


def _label(kind: str, micro_batch: int, chunk: int, num_chunks: int) -> str:
    return f"{kind} {micro_batch}, chunk {chunk}" if num_chunks > 1 else f"{kind} {micro_batch}"


def _slices(trace: StepTrace) -> Iterator[tuple[int, Stream, _Slice]]:
    """Return all slices with their stage and stream."""
    chunks = trace.num_chunks
    for slot in trace.slots:
        details: dict[str, object] = {"pass": NAMES[slot.kind], "micro_batch": slot.micro_batch, "chunk": slot.chunk}
        name = _label(NAMES[slot.kind], slot.micro_batch, slot.chunk, chunks)
        parts = trace.parts.get((slot.stage, slot.kind, slot.chunk), ())
        yield slot.stage, Stream.COMPUTE, _Slice(slot.start, slot.end, name, details, parts)
    for message in trace.messages:
        name = "activations" if message.kind is FORWARD else "gradients"
        details = {"micro_batch": message.micro_batch, "chunk": message.chunk}
        details |= {"from_stage": message.sender, "to_stage": message.receiver}
        label = _label(name, message.micro_batch, message.chunk, chunks)
        yield message.sender, Stream.SEND, _Slice(message.start, message.end, label, details)
        yield message.receiver, Stream.RECEIVE, _Slice(message.start, message.end, label, details)
    for piece in trace.ends:
        yield piece.stage, piece.stream, _Slice(piece.start, piece.end, piece.name, {})


def _lanes(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Return slices in as few rows as hold them without overlap."""
    lanes: list[list[_Slice]] = []
    for one in sorted(slices, key=lambda one: (one.start, one.end)):
        free = (lane for lane in lanes if lane[-1].end <= one.start)
        lane = next(free, None)
        if lane is None:
            lanes.append([one])
        else:
            lane.append(one)
    return lanes


def _nanoseconds(us: float) -> int:
    """Return the whole nanoseconds that viewers count in, so that what touches still touches and nothing overlaps."""
    return round(us * 1000)


def _complete(start: float, end: float, row: Mapping[str, object], **rest: object) -> dict[str, object]:
    begin = _nanoseconds(start)
    return {"ph": "X", "ts": begin / 1000, "dur": (_nanoseconds(end) - begin) / 1000, **row, **rest}


def _events(one: _Slice, row: Mapping[str, object], category: str) -> Iterator[dict[str, object]]:
    """Return a slice and, behind it, its parts."""
    yield _complete(one.start, one.end, row, name=one.name, cat=category, args=one.details)
    edges = list(accumulate((us for _, us in one.parts), initial=one.start))
    assert edges[-1] <= one.end + 1e-6 * (one.end - one.start) + 1e-3, "parts are longer than their slot"
    for (name, us), start, end in zip(one.parts, edges, edges[1:], strict=False):
        if us > 0.0:
            yield _complete(min(start, one.end), min(end, one.end), row, name=name, cat=category, args={})


def _metadata(what: str, row: Mapping[str, object], **args: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "ts": 0, **row, "args": args}


def trace_events(trace: StepTrace) -> dict[str, object]:
    """Return a step as a JSON object in the Trace Event Format; its events come row by row, in the order of time."""
    rows: dict[tuple[int, Stream], list[_Slice]] = {}
    for stage, stream, one in _slices(trace):
        if one.end > one.start or stream is Stream.COMPUTE:
            rows.setdefault((stage, stream), []).append(one)
    width = len(str(trace.num_stages - 1))  # viewers sort by name
    streams = list(Stream)
    events: list[dict[str, object]] = []
    threads = 0
    for stage in range(trace.num_stages):
        process = {"pid": stage + 1, "tid": 0}  # 0 is the idle process of a Linux trace
        events.append(_metadata("process_name", process, name=f"stage {stage:0{width}}"))
        events.append(_metadata("process_sort_index", process, sort_index=stage))
        for stream in streams:
            for number, lane in enumerate(_lanes(rows.get((stage, stream), ()))):
                threads += 1
                row = {"pid": stage + 1, "tid": threads}
                label = f"{stream} {number + 1}" if number else str(stream)
                events.append(_metadata("thread_name", row, name=label))
                events.append(_metadata("thread_sort_index", row, sort_index=threads))
                for one in lane:
                    events += _events(one, row, str(stream))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"title": trace.title, "step_us": trace.step_us},
    }
