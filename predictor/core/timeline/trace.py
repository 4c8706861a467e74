"""Read and write spans as Chrome trace-event JSON, for Perfetto (ui.perfetto.dev) and chrome://tracing.

Every stage is a process, every stream of it a thread. What PyTorch's profiler (Kineto) writes has the same form.

Source of the format: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
complete events ("X") with ``ts`` and ``dur`` in microseconds, which nest by time within a thread; metadata ("M"); flow
events ("s", "f"), which viewers draw as arrows from what a span waited for to the span; counters ("C"), which viewers
draw as curves.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from predictor.core.base.collector import paused_collector
from predictor.core.timeline.pipeline import Stream
from predictor.core.timeline.spans import Span

RECOMPUTE = "recompute"
STAGE = re.compile(r"stage (\d+)")


class TraceError(ValueError):
    """A trace file that cannot be read; the message names the file and what is wrong."""


class Counter(NamedTuple):
    """Values of a stage from a time on, until the next ones of the same name."""

    name: str
    rank: int
    at_us: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The spans of one step; times in microseconds from its start.

    Attributes:
        step_us: end of the step.
        spans: slots, messages (a send and a receive each), the end of the step and, of depth 1, the parts of slots;
            RECOMPUTE is the name of recomputation. Their ranks are stages, and slots have details pass, micro_batch
            and chunk.
        blocking: messages keep their stages from computing.
        counters: values over time, of every stage and name in the order of time.
    """

    title: str
    step_us: float
    spans: Sequence[Span]
    blocking: bool = False
    counters: Sequence[Counter] = ()

    @property
    def num_stages(self) -> int:
        """Return the number of pipeline stages."""
        return 1 + max(span.rank for span in self.spans)

    @property
    def slots(self) -> list[Span]:
        """Return the slots, stage by stage."""
        return [span for span in self.spans if span.stream == Stream.COMPUTE and not span.depth]


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Return spans in as few rows as possible without overlap, each followed by its parts."""
    lanes: list[list[Span]] = []
    last: list[Span] = []  # of each lane, the last span of depth 0
    for span in sorted(spans, key=lambda span: (span.start_us, span.depth, span.end_us)):
        if span.depth:
            holds = (i for i, top in enumerate(last) if top.start_us <= span.start_us and span.end_us <= top.end_us)
        else:
            holds = (i for i, top in enumerate(last) if top.end_us <= span.start_us)
        lane = next(holds, None)
        if lane is None:
            lanes.append([span])
            last.append(span)
        else:
            lanes[lane].append(span)
            last[lane] = last[lane] if span.depth else span
    return lanes


def _nanoseconds(us: float) -> int:
    """Return whole nanoseconds, the resolution of viewers, so that adjacent spans neither part nor overlap."""
    return round(us * 1000)


def _complete(span: Span, row: Mapping[str, object]) -> dict[str, object]:
    begin = _nanoseconds(span.start_us)
    times = {"ts": begin / 1000, "dur": (_nanoseconds(span.end_us) - begin) / 1000}
    return {"ph": "X", **times, **row, "name": span.name, "cat": span.category, "args": dict(span.details)}


def _metadata(what: str, row: Mapping[str, object], **args: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "ts": 0, **row, "args": args}


def _arrows(spans: Sequence[Span], rows: Mapping[int, Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the dependencies of spans (``after``) as pairs of flow events, each inside the span that it binds to.

    Args:
        spans: those of a trace.
        rows: process and thread by the position of a span; of spans that are not in the trace there is none.
    """
    arrows: list[dict[str, object]] = []
    for position, span in enumerate(spans):
        for before in span.after if position in rows else ():
            begin, end = _nanoseconds(spans[before].start_us), _nanoseconds(spans[before].end_us)
            if before in rows and end > begin:
                arrow = {"id": len(arrows) // 2, "cat": "dependency", "name": "dependency"}
                start = _nanoseconds(span.start_us) / 1000
                arrows.append({"ph": "s", "ts": (end - 1) / 1000, **rows[before], **arrow})
                arrows.append({"ph": "f", "bp": "e", "ts": start, **rows[position], **arrow})
    return arrows


def _counted(counters: Iterable[Counter]) -> list[dict[str, object]]:
    """Return counters as events of their stages' processes."""
    return [
        {
            "ph": "C",
            "ts": _nanoseconds(counter.at_us) / 1000,
            "pid": counter.rank + 1,
            "name": counter.name,
            "args": dict(counter.values),
        }
        for counter in counters
    ]


@paused_collector()
def trace_events(trace: StepTrace) -> dict[str, object]:
    """Return a step as a JSON object in the Trace Event Format.

    Its spans come row by row, in the order of time, then its counters, and the arrows between spans last.
    """
    positions = {id(span): position for position, span in enumerate(trace.spans)}
    row_of: dict[int, dict[str, object]] = {}
    rows: dict[tuple[int, str], list[Span]] = {}
    for span in trace.spans:
        if span.end_us > span.start_us or span.stream == Stream.COMPUTE:
            rows.setdefault((span.rank, span.stream), []).append(span)
    width = len(str(trace.num_stages - 1))  # viewers sort by name
    streams = list(dict.fromkeys([*map(str, Stream), *(stream for _, stream in rows)]))
    events: list[dict[str, object]] = []
    threads = 0
    for stage in range(trace.num_stages):
        process = {"pid": stage + 1, "tid": 0}  # 0 is the idle process of a Linux trace
        events.append(_metadata("process_name", process, name=f"stage {stage:0{width}}"))
        events.append(_metadata("process_sort_index", process, sort_index=stage))
        for stream in streams:
            for number, lane in enumerate(_lanes(rows.get((stage, stream), ()))):
                threads += 1
                row: dict[str, object] = {"pid": stage + 1, "tid": threads}
                row_of |= dict.fromkeys((positions[id(span)] for span in lane), row)
                label = f"{stream} {number + 1}" if number else stream
                events.append(_metadata("thread_name", row, name=label))
                events.append(_metadata("thread_sort_index", row, sort_index=threads))
                events += [_complete(span, row) for span in lane]
    return {
        "traceEvents": events + _counted(trace.counters) + _arrows(trace.spans, row_of),
        "displayTimeUnit": "ms",
        "otherData": {"title": trace.title, "step_us": trace.step_us},
    }


def read_spans(path: Path) -> list[Span]:
    """Return the complete events of a trace file, .json or .json.gz, as spans in the order in which they start.

    A process named « stage 3 » is rank 3 and its streams are its threads' names, as ``trace_events`` writes them.
    Otherwise the rank is that of Kineto's distributedInfo, 0 without, and streams are named by process and thread.
    Times count from the first event, in whole nanoseconds. Dependencies (``after``) are not read.

    Raises:
        TraceError: the file is not there, is torn, or is no trace.
    """
    try:
        content = path.read_bytes()
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TraceError(f"{path} does not read as JSON: {error}") from error
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TraceError(f"{path} is no trace: expected a list of events, or an object with one as traceEvents")
    try:
        rank = int(document["distributedInfo"]["rank"]) if isinstance(document, dict) else 0
    except KeyError:
        rank = 0
    except (TypeError, ValueError) as error:
        raise TraceError(f"{path}: distributedInfo has no rank: {error}") from error
    try:
        return _spans(events, rank)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path} is damaged: {error!r}") from error


def _spans(events: Sequence[Mapping[str, object]], rank: int) -> list[Span]:
    """Return complete events as spans, each with its depth in its thread."""
    metadata = [event for event in events if event.get("ph") == "M"]
    processes = {event["pid"]: event["args"] for event in metadata if event["name"] == "process_name"}
    labels = {event["pid"]: event["args"] for event in metadata if event["name"] == "process_labels"}
    threads = {(event["pid"], event.get("tid")): event["args"] for event in metadata if event["name"] == "thread_name"}
    complete = [event for event in events if event.get("ph") == "X"]
    places: dict[tuple[object, object], tuple[int, str]] = {}
    for key in dict.fromkeys((event["pid"], event["tid"]) for event in complete):
        pid, tid = key
        process, thread = _text(processes.get(pid), "name"), _text(threads.get(key), "name") or str(tid)
        stage = STAGE.fullmatch(process)
        label = _text(labels.get(pid), "labels") or process or str(pid)
        places[key] = (int(stage[1]), thread) if stage else (rank, f"{label} {thread}")
    first = min((_number(event["ts"]) for event in complete), default=0.0)
    timed = []
    for event in complete:
        start, lasts = _number(event["ts"]) - first, _number(event["dur"])
        if lasts < 0.0:
            raise ValueError(f"event {event['name']} lasts {lasts} µs")
        begins = _nanoseconds(start)
        timed.append((begins, begins + _nanoseconds(lasts), event))
    timed.sort(key=lambda times: (times[0], -times[1]))
    spans = []
    around: dict[tuple[int, str], list[int]] = {}  # ends of the spans that enclose what comes next
    for begins, ends, event in timed:
        place = places[event["pid"], event["tid"]]
        enclosing = around.setdefault(place, [])
        while enclosing and (enclosing[-1] <= begins or enclosing[-1] < ends):
            enclosing.pop()
        category, details = str(event.get("cat", "")), event.get("args", {})
        if not isinstance(details, dict):
            raise TypeError(f"args of event {event['name']} are {details!r}")
        times = (begins / 1000, ends / 1000)
        spans.append(Span(str(event["name"]), *place, *times, category=category, details=details, depth=len(enclosing)))
        enclosing.append(ends)
    return spans


def _text(args: object, key: str) -> str:
    return str(args.get(key, "")) if isinstance(args, dict) else ""


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return value
