"""The trace of a step: what viewers of the Trace Event Format need, nothing on top of something else in a row."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.core.timeline.graph import replay_graph
from predictor.core.timeline.pipeline import Stream, pipeline_tasks
from predictor.core.timeline.schedules import SCHEDULES
from predictor.core.timeline.spans import Span, parts_of
from predictor.core.timeline.step_end import StageEnd, ending_tasks
from predictor.core.timeline.trace import RECOMPUTE, StepTrace, TraceError, read_spans, trace_events
from tests.property.test_schedules import Case, cases
from tests.unit.kineto_traces import recorded_traces

Event = dict[str, Any]


def traced(case: Case, parts: bool = False) -> StepTrace:
    """Return a case as a step with an end."""
    name, stages, micro_batches, _, blocking = case.sizes
    tasks = pipeline_tasks(SCHEDULES[name], micro_batches, *case[1:], blocking)
    ends = [StageEnd(30.0, 3, 0.0, 0.0, 5.0, 0.0, 0.0)] * stages
    replayed = replay_graph(tasks + ending_tasks(tasks, ends, blocking))
    spans = replayed.spans
    slots = [
        span for span in spans if span.stream == Stream.COMPUTE and span.details["pass"] in ("forward", "backward")
    ]
    inside = [
        part
        for slot in slots
        for part in parts_of(slot, [("kernels", slot.duration_us / 2), ("traffic", slot.duration_us / 3)])
    ]
    return StepTrace("a run", replayed.makespan_us, [*spans, *(inside if parts else [])], blocking)


def rows(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Return the complete events of every row."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def nanoseconds(event: Event) -> tuple[int, int]:
    """Return when an event starts and ends, as viewers count."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


@given(cases())
def test_no_slice_of_a_row_overlaps_another(case: Case) -> None:
    for row in rows(trace_events(traced(case))["traceEvents"]).values():  # type: ignore[arg-type]
        for before, after in pairwise(row):
            assert nanoseconds(before)[0] <= nanoseconds(before)[1] <= nanoseconds(after)[0]


@given(cases())
def test_parts_lie_inside_their_slot(case: Case) -> None:
    for row in rows(trace_events(traced(case, parts=True))["traceEvents"]).values():  # type: ignore[arg-type]
        end = slot_end = 0
        for event in row:
            start, stop = nanoseconds(event)
            if event["name"] in ("kernels", "traffic"):
                assert end <= start <= stop <= slot_end
                end = stop
            else:
                assert start >= slot_end
                end, slot_end = start, stop


@given(cases())
def test_every_slot_and_message_is_in_the_trace(case: Case) -> None:
    trace = traced(case)
    events: list[Event] = trace_events(trace)["traceEvents"]  # type: ignore[assignment]
    count: dict[str | None, int] = defaultdict(int)
    for event in events:
        count[event.get("cat")] += event["ph"] == "X"
    assert count[Stream.COMPUTE] == len(trace.slots)
    longer = sum(span.stream == Stream.SEND and span.end_us > span.start_us for span in trace.spans)
    assert count[Stream.SEND] == count[Stream.RECEIVE] == longer


def small() -> StepTrace:
    tasks = pipeline_tasks(SCHEDULES["interleaved_1f1b"], 2, [[1, 1]] * 2, [[2, 2]] * 2, [], 0.5, blocking=False)
    tasks += ending_tasks(tasks, [StageEnd(3.0, 4, 2.0, 0.0, stage + 1.0, 1.0, 0.0) for stage in (1, 0)], False)
    replayed = replay_graph(tasks)
    inside = [
        part
        for span in replayed.spans
        if (span.rank, span.details.get("pass"), span.details.get("chunk")) == (0, "backward", 1)
        for part in parts_of(span, [(RECOMPUTE, 0.75), ("kernels", 1.0)])
    ]
    return StepTrace("two stages", 25.0, [*replayed.spans, *inside])


def test_every_event_has_the_fields_of_its_kind() -> None:
    """Trace Event Format: complete events have ts and dur, metadata events an argument of the name they set."""
    document = json.loads(json.dumps(trace_events(small())))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"] == {"title": "two stages", "step_us": 25.0}
    for event in document["traceEvents"]:
        assert {"ph", "pid", "tid", "ts", "name", "id" if event["ph"] in "sf" else "args"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            assert event["cat"] in set(Stream)
        elif event["ph"] in ("s", "f"):
            assert (event["cat"], event.get("bp")) == ("dependency", "e" if event["ph"] == "f" else None)
        else:
            assert event["ph"] == "M"
            values = {"process_name": "name", "thread_name": "name"}
            assert set(event["args"]) == {values.get(event["name"], "sort_index")}


def test_a_stage_is_a_process_and_a_stream_a_thread() -> None:
    events: list[Event] = trace_events(small())["traceEvents"]  # type: ignore[assignment]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "stage 0", 2: "stage 1"}
    streams = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1]
    assert streams == ["compute", "pipeline send", "pipeline receive", "data-parallel traffic", "optimizer"]
    threads = [event["tid"] for event in events if event["name"] == "thread_name"]
    assert len(set(threads)) == len(threads)


def test_a_slot_says_what_it_is() -> None:
    events: list[Event] = trace_events(small())["traceEvents"]  # type: ignore[assignment]
    first = next(event for event in events if event["ph"] == "X")
    assert (first["name"], first["ts"], first["dur"]) == ("forward 0, chunk 0", 0.0, 1.0)
    assert first["args"] == {"pass": "forward", "micro_batch": 0, "chunk": 0}
    at = next(i for i, event in enumerate(events) if event["name"] == "backward 0, chunk 1" and event["pid"] == 1)
    slot, *inside = events[at : at + 3]
    assert [(event["name"], event["dur"]) for event in inside] == [(RECOMPUTE, 0.75), ("kernels", 1.0)]
    assert [event["ts"] - slot["ts"] for event in inside] == [0.0, 0.75]


@given(cases())
def test_every_dependency_is_an_arrow_between_its_spans(case: Case) -> None:
    trace = traced(case, parts=True)
    events: list[Event] = trace_events(trace)["traceEvents"]  # type: ignore[assignment]
    starts, ends = ([event for event in events if event["ph"] == kind] for kind in "sf")
    assert [event["id"] for event in starts] == [event["id"] for event in ends] == list(range(len(starts)))
    spans = rows(events)
    for start, end in zip(starts, ends, strict=True):
        waits = [span for span in spans[end["pid"], end["tid"]] if span["ts"] == end["ts"]]
        at = round(start["ts"] * 1000)
        holds = [
            span for span in spans[start["pid"], start["tid"]] if nanoseconds(span)[0] <= at == nanoseconds(span)[1] - 1
        ]
        assert waits
        assert holds
        assert at < round(end["ts"] * 1000)

    def is_written(span: Span) -> bool:
        return span.stream == Stream.COMPUTE or span.end_us > span.start_us

    dependencies = [(trace.spans[before], span) for span in trace.spans if is_written(span) for before in span.after]
    longer = [before for before, _ in dependencies if round(before.end_us * 1000) > round(before.start_us * 1000)]
    assert len(starts) == len(longer)


def test_messages_that_overlap_get_rows_of_their_own() -> None:
    tasks = pipeline_tasks(SCHEDULES["all_forward_all_backward"], 3, [[1], [1]], [[1], [1]], [], 10.0, blocking=False)
    events: list[Event] = trace_events(StepTrace("slow", 40.0, replay_graph(tasks).spans))["traceEvents"]  # type: ignore[assignment]
    streams = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1]
    assert streams[:4] == ["compute", "pipeline send", "pipeline send 2", "pipeline send 3"]


def test_stages_sort_by_name() -> None:
    tasks = pipeline_tasks(SCHEDULES["1f1b"], 1, [[1]] * 12, [[1]] * 12, [], 0.0)
    events: list[Event] = trace_events(StepTrace("long", 24.0, replay_graph(tasks).spans))["traceEvents"]  # type: ignore[assignment]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == sorted(names)
    assert names[0] == "stage 00"


def test_parts_longer_than_their_slot_are_an_error() -> None:
    with pytest.raises(AssertionError, match="longer than their span"):
        parts_of(Span("forward 0", 0, "compute", 1.0, 2.0), [("kernels", 1.5)])


@given(cases(), st.booleans())
def test_a_trace_that_is_read_again_is_the_trace(case: Case, parts: bool) -> None:
    """All its events in their rows, to the nanosecond."""
    document = trace_events(traced(case, parts))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(document).encode()))
        spans = read_spans(path)
    again = trace_events(StepTrace("a run", document["otherData"]["step_us"], spans))  # type: ignore[index]

    def by_row(trace: dict[str, object]) -> list[list[str]]:
        """What lasts no nanosecond is left out: of it only slots are written."""
        events = json.loads(json.dumps(trace["traceEvents"]))
        longer = [[event | {"tid": 0} for event in row if event["dur"]] for row in rows(events).values()]
        return sorted(sorted(map(json.dumps, row)) for row in longer if row)

    assert by_row(again) == by_row(document)


def kineto() -> dict[str, object]:
    """Return a document as PyTorch's profiler writes them: absolute times, one process of the host, one of the GPU."""
    names = [(7, 0, "process_labels", {"labels": "CPU"}), (0, 0, "process_labels", {"labels": "GPU 0"})]
    names += [(7, 9, "thread_name", {"name": "thread 9 (python)"}), (0, 20, "thread_name", {"name": "stream 20 "})]
    events: list[dict[str, object]] = [
        {"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": name, "args": args} for pid, tid, name, args in names
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 20, "ts": 1000012, "dur": 5, "args": {"a": 1}},
        {"ph": "X", "cat": "cpu_op", "name": "linear", "pid": 7, "tid": 9, "ts": 1000001, "dur": 6.5},
        {"ph": "X", "cat": "cpu_op", "name": "addmm", "pid": 7, "tid": 9, "ts": 1000002, "dur": 2},
        {"ph": "X", "cat": "cpu_op", "name": "mm", "pid": 7, "tid": 9, "ts": 1000004, "dur": 3},
        {"ph": "s", "id": 1, "pid": 7, "tid": 9, "ts": 1000003, "cat": "ac2g", "name": "ac2g"},
    ]
    return {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": events}


def test_a_kineto_trace_is_read_as_spans(tmp_path: Path) -> None:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps(kineto()), encoding="utf-8")
    host, gpu = "CPU thread 9 (python)", "GPU 0 stream 20 "
    assert read_spans(path) == [
        Span("linear", 3, host, 0.0, 6.5, category="cpu_op", details={}),
        Span("addmm", 3, host, 1.0, 3.0, category="cpu_op", details={}, depth=1),
        Span("mm", 3, host, 3.0, 6.0, category="cpu_op", details={}, depth=1),
        Span("gemm", 3, gpu, 11.0, 16.0, category="kernel", details={"a": 1}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not read as JSON"),
        (b"{", "does not read as JSON"),
        (b"\x1f\x8b\x08\x00", "does not read as JSON"),
        (gzip.compress(b'{"traceEvents": []}' * 99, mtime=0)[:-12], "does not read as JSON"),
        (b"\xff\xfe", "does not read as JSON"),
        (b"[" * 200_000, "does not read as JSON"),
        (b"3", "is no trace"),
        (b'{"nodes": []}', "is no trace"),
        (b'{"traceEvents": [3]}', "is no trace"),
        (b'{"traceEvents": [], "distributedInfo": {"rank": null}}', "distributedInfo has no rank"),
        (b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1}]', "is damaged: KeyError.'dur'"),
        (b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": -1}]', "event a lasts -1"),
        (b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": NaN, "dur": 1}]', "nan is no time"),
        (b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": "1", "dur": 1}]', "'1' is no time"),
        (b'[{"ph": "X", "name": "a", "pid": [], "tid": 1, "ts": 1, "dur": 1}]', "is damaged"),
        (b'[{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": 3}]', "args of event a are 3"),
    ],
)
def test_a_damaged_trace_is_one_clear_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_spans(path)


def test_a_trace_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.json"):
        read_spans(tmp_path / "absent.json")


@pytest.mark.parametrize("path", recorded_traces())
def test_every_recorded_kineto_trace_is_read_whole(path: Path) -> None:
    document = json.loads(gzip.decompress(path.read_bytes()))
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    spans = read_spans(path)
    assert len(spans) == len(complete)
    assert len({(span.rank, span.stream) for span in spans}) == len({(e["pid"], e["tid"]) for e in complete})
    assert {span.rank for span in spans} == {document.get("distributedInfo", {}).get("rank", 0)}
    total = sum(event["dur"] for event in complete)
    assert sum(span.duration_us for span in spans) == pytest.approx(total, rel=1e-6)
