"""Of a damaged trace what is whole is read and the rest noted; what is no trace is refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from predictor.replay.files import trace_bytes
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError
from tests.unit.kineto_traces import event, training_steps, write, written


def read_names(path: Path) -> list[str]:
    return [item.name for item in read_trace(path).events]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"dur": -1}, "1 events have a negative duration; left out"),
        ({"dur": None}, "1 events have no time or no duration; left out"),
        ({"ts": "soon"}, "1 events have no time or no duration; left out"),
        ({"ts": float("nan")}, "1 events have no time or no duration; left out"),
        ({"dur": float("inf")}, "1 events have no time or no duration; left out"),
        ({"ts": True}, "1 events have no time or no duration; left out"),
        ({"ph": None}, "1 events have no kind (ph); left out"),
    ],
)
def test_events_without_times_are_left_out_and_noted(tmp_path: Path, change: dict[str, Any], note: str) -> None:
    events = [event("cpu_op", "good", 1, 2), {**event("cpu_op", "bad", 3, 4), **change}]
    trace = read_trace(written(tmp_path, events))
    assert [item.name for item in trace.events] == ["good"]
    assert list(trace.notes) == [note]


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "i", "name": "instant", "ts": 3},
        {"ph": "C", "name": "counter", "ts": 3, "args": {"a": 1}},
        {"ph": "t", "id": 1, "ts": 3, "cat": "ac2g"},
        {"ph": "s", "id": 1},
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "name": "times as text", "ts": "3.5", "dur": "1", "cat": "cpu_op"},
        {"ph": "X", "ts": 3, "dur": 0, "args": None},
        {"ph": "X", "ts": 3, "dur": 0, "args": ["not", "an", "object"], "cat": None, "name": None},
        {
            "ph": "X",
            "ts": 3,
            "dur": 1e9,
            "pid": [1],
            "tid": {"a": 2},
            "name": 7,
            "cat": "kernel",
            "args": {"stream": []},
        },
    ],
)
def test_odd_events_are_no_failure(tmp_path: Path, odd: dict[str, Any]) -> None:
    assert "good" in read_names(written(tmp_path, [event("cpu_op", "good", 1, 2), odd]))


def test_what_is_no_event_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "good", 1, 2), 5, "x", None, [1]]}))
    assert list(read_trace(path).notes) == ["4 events are no objects; left out"]


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    copy = json.dumps(event("gpu_memcpy", "copy", 1, 2, bytes=0, speed=123.0))
    path = tmp_path / "trace.json"
    for number in ("inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-nan(ind)"):
        damaged = copy.replace("123.0", number)
        path.write_text(f'{{"traceEvents": [{damaged}, {damaged}, {copy}], "distributedInfo": {{"rank": 3}}}}')
        trace = read_trace(path)
        assert (len(trace.events), trace.rank, trace.notes) == (3, 3, ()), number
        path.write_text(f'{{"traceEvents": [{copy}, {damaged}], "distributedInfo": {{"rank": 3}}}}')
        assert (len(read_trace(path).events), read_trace(path).rank) == (2, 3), number


def test_an_event_that_is_no_json_is_left_out(tmp_path: Path) -> None:
    good = json.dumps(event("cpu_op", "good", 1, 2))
    bad = good.replace("good", 'a "quoted" name')
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{good}, {bad}, {good}], "traceName": "it"}}')
    trace = read_trace(path)
    assert [item.name for item in trace.events] == ["good", "good"]
    assert list(trace.notes) == ["1 events are no JSON; left out"]


def test_invalid_utf8_control_characters_and_repeated_keys(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(
        b'\xef\xbb\xbf{"traceEvents": [{"ph": "X", "cat": "cpu_op",'
        b' "ts": 1, "ts": 2, "dur": 3, "name": "a\xff\tb\n\x01"}]}'
    )
    trace = read_trace(path)
    assert [(item.name, item.end_us) for item in trace.events] == [("a\ufffd\tb\n\x01", 3.0)]
    assert trace.begin_us == 2.0


@pytest.mark.parametrize("ending", ["]", "", ",", ",\n", " ]\n\n"])
def test_a_list_alone_may_lack_its_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f"[{json.dumps(event('cpu_op', 'a', 1, 2))},\n{json.dumps(event('cpu_op', 'b', 4, 2))}{ending}")
    trace = read_trace(path)
    assert ([item.name for item in trace.events], trace.notes) == (["a", "b"], ())


def test_a_list_cut_within_an_event_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'[{json.dumps(event("cpu_op", "a", 1, 2))}, {{"ph": "X", "na')
    assert list(read_trace(path).notes) == ["the file is torn; it ends within its events"]


def test_a_trace_torn_in_the_middle_keeps_its_whole_part(tmp_path: Path) -> None:
    path = written(tmp_path, training_steps(3))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    trace = read_trace(path)
    assert 12 < len(trace.events) < 24
    assert list(trace.notes) == ["the file is torn; it ends within its events"]


def test_a_torn_compressed_trace_keeps_its_whole_part(tmp_path: Path) -> None:
    events = [event("cpu_op", f"aten::op{number * 7919 % 1013}", number, 1) for number in range(4000)]
    path = write(tmp_path / "trace.json.gz", events)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    trace = read_trace(path)
    assert 1000 < len(trace.events) < 3500
    assert list(trace.notes) == [
        "the compressed file is torn",
        "the file is torn; it ends within its events",
    ]


def test_a_damaged_compressed_trace_keeps_what_precedes(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"[" + b",".join([json.dumps(event("cpu_op", "a", 1, 2)).encode()] * 9) + b"]"))
    content[-8] ^= 0xFF  # the check sum
    path = tmp_path / "trace.json.gz"
    path.write_bytes(bytes(content))
    trace = read_trace(path)
    assert (len(trace.events), len(trace.notes)) == (9, 1)
    assert trace.notes[0].startswith("the compressed file is damaged (Error -3")
    path.write_bytes(bytes(content[:10]))
    with pytest.raises(RecordError, match=r"is no trace: it is empty \(the compressed file is torn\)"):
        read_trace(path)


def test_facts_torn_after_the_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{json.dumps(event("cpu_op", "a", 1, 2))}], "distributedInfo": {{"ra')
    trace = read_trace(path)
    assert (len(trace.events), list(trace.notes)) == (1, ["what stands after the events is damaged or torn"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace: it is empty"),
        (b" \n", "is no trace: it is empty"),
        (b"<!DOCTYPE html><html></html>", r"is no trace: it begins with '<!DOCTYPE html><html></h"),
        (b"a: 1\nb: 2\n", "is no trace: it begins with 'a: 1'; expected JSON"),
        (b'"text"', "is no trace: it begins with"),
        (b"{}", "is no trace: it has no list traceEvents"),
        (b'{"traceEvents": {}}', "is no trace: it has no list traceEvents"),
        (b'{"schema": "1.0.1", "nodes": [{"id": 1}]}', "is no trace of the profiler but an execution trace"),
        (b'{"traceEvents": []}', "has no event with a time and a duration"),
        (b'{"traceEvents": [', r"no event with a time and a duration \(the file is torn"),
        (b"[1, 2, 3]", r"no event with a time and a duration \(3 events are no objects"),
        (b"\x1f\x8b\x08\x00garbage", "is no trace: it is empty"),
        (b"\x7fELF\x02\x01\x01", "is no trace: it begins with"),
        (b"PK\x03\x04", "is no trace: it begins with"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_folders_and_missing_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read as a trace: it is a folder"):
        read_trace(tmp_path)
    with pytest.raises(RecordError, match=r"missing.json cannot be read as a trace: No such file"):
        read_trace(tmp_path / "missing.json")


def test_nested_lists_of_objects_and_braces_in_names_do_not_mislead_the_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        event("cpu_op", "a }, { b", number, 1, nested=[{"x": [{"y": "},{"}, {}]}, {"z": "]"}]) for number in range(200)
    ]
    path = tmp_path / "trace.json"
    facts = {"after": [{"a": 1}, {"b": "], }, {"}] * 50, "distributedInfo": {"rank": 5, "world_size": 6}}
    path.write_text(json.dumps({"traceEvents": events, **facts}, ensure_ascii=False))
    for size in (64, 300, 1 << 12):
        monkeypatch.setattr(trace_bytes, "PIECE_BYTES", size)
        monkeypatch.setattr(trace_bytes, "COMPRESSED_BYTES", size)
        trace = read_trace(path)
        assert ([item.name for item in trace.events], trace.rank, trace.notes) == (["a }, { b"] * 200, 5, ())


def test_characters_of_several_bytes_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([event("cpu_op", "µ→« naïve 計 »" * 3, n, 1) for n in range(40)], ensure_ascii=False))
    for size in range(61, 90, 7):
        monkeypatch.setattr(trace_bytes, "PIECE_BYTES", size)
        monkeypatch.setattr(trace_bytes, "COMPRESSED_BYTES", size)
        assert set(read_names(path)) == {"µ→« naïve 計 »" * 3}
        assert len(read_names(path)) == 40
