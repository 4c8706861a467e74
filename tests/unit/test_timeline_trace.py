"""The trace of a step: what viewers of the Trace Event Format need, nothing on top of something else in a row."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.timeline.record import record
from predictor.timeline.schedules import SCHEDULES, Pass
from predictor.timeline.trace import RECOMPUTE, Piece, StepTrace, Stream, step_ends, trace_events
from tests.property.test_schedules import Case, cases

Event = dict[str, Any]


def traced(case: Case, parts: bool = False) -> StepTrace:
    """Return a case as a step with an end."""
    name, stages, micro_batches, chunks, blocking = case.sizes
    found = record(SCHEDULES[name], micro_batches, *case[1:], blocking)
    ends = step_ends(found.finished, [30.0] * stages, [10.0] * stages, [5.0] * stages, [0.0] * stages)
    inside = {}
    if parts:
        inside = {
            (stage, kind, chunk): [("kernels", durations[stage][chunk] / 2), ("traffic", durations[stage][chunk] / 3)]
            for kind, durations in ((Pass.FORWARD, case.forward), (Pass.BACKWARD, case.backward))
            for stage in range(stages)
            for chunk in range(chunks)
        }
    return StepTrace("a run", max(end.end for end in ends), found.slots, found.messages, blocking, ends, inside)


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
    longer = sum(message.end > message.start for message in trace.messages)
    assert count[Stream.SEND] == count[Stream.RECEIVE] == longer


def small() -> StepTrace:
    case = record(SCHEDULES["interleaved_1f1b"], 2, [[1, 1]] * 2, [[2, 2]] * 2, [], 0.5, blocking=False)
    ends = step_ends(case.finished, [3.0, 3.0], [1.0, 1.0], [2.0, 1.0], [1.0, 1.0])
    parts = {(0, Pass.BACKWARD, 1): [(RECOMPUTE, 0.75), ("kernels", 1.0)]}
    return StepTrace("two stages", 25.0, case.slots, case.messages, ends=ends, parts=parts)


def test_every_event_has_the_fields_of_its_kind() -> None:
    """Trace Event Format: complete events have ts and dur, metadata events an argument of the name they set."""
    document = json.loads(json.dumps(trace_events(small())))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"] == {"title": "two stages", "step_us": 25.0}
    for event in document["traceEvents"]:
        assert {"ph", "pid", "tid", "ts", "name", "args"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            assert event["cat"] in set(Stream)
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


def test_messages_that_overlap_get_rows_of_their_own() -> None:
    found = record(SCHEDULES["all_forward_all_backward"], 3, [[1], [1]], [[1], [1]], [], 10.0, blocking=False)
    events: list[Event] = trace_events(StepTrace("slow", 40.0, found.slots, found.messages))["traceEvents"]  # type: ignore[assignment]
    streams = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1]
    assert streams[:4] == ["compute", "pipeline send", "pipeline send 2", "pipeline send 3"]


def test_stages_sort_by_name() -> None:
    found = record(SCHEDULES["1f1b"], 1, [[1]] * 12, [[1]] * 12, [], 0.0)
    events: list[Event] = trace_events(StepTrace("long", 24.0, found.slots))["traceEvents"]  # type: ignore[assignment]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == sorted(names)
    assert names[0] == "stage 00"


def test_optimizers_wait_for_the_last_reduction() -> None:
    pieces = step_ends([10.0, 6.0], [4.0, 3.0], [1.0, 3.0], [2.0, 1.0], [0.0, 0.5])
    assert pieces == [
        Piece(0, Stream.REDUCTION, "gradient reduction", 7.0, 11.0),
        Piece(0, Stream.OPTIMIZER, "optimizer", 11.0, 13.0),
        Piece(1, Stream.REDUCTION, "gradient reduction", 6.0, 9.0),
        Piece(1, Stream.OPTIMIZER, "optimizer", 11.0, 12.0),
        Piece(1, Stream.REDUCTION, "parameter gather", 12.0, 12.5),
    ]


@given(st.lists(st.floats(0.0, 1e7), min_size=1, max_size=5))
def test_a_reduction_never_starts_before_the_step(exposed: list[float]) -> None:
    finished = [1.0] * len(exposed)
    for piece in step_ends(finished, [2e7] * len(exposed), exposed, finished, finished):
        assert 0.0 <= piece.start < piece.end


def test_parts_longer_than_their_slot_are_an_error() -> None:
    trace = small()
    parts = {(0, Pass.FORWARD, 0): [("kernels", 1.5)]}
    with pytest.raises(AssertionError, match="longer than their slot"):
        trace_events(StepTrace("wrong", 25.0, trace.slots, parts=parts))
