"""However a trace is cut or damaged, it is read as far as it is whole or refused in one line."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from predictor.replay.files import trace_bytes
from predictor.replay.files.chakra_file import Attribute, ChakraFile, ChakraNode, NodeType, write_chakra_file
from predictor.replay.files.events import RankTrace
from predictor.replay.files.execution_trace import read_execution_trace
from predictor.replay.files.kineto import read_trace
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.steps import choose_step
from tests.unit.kineto_traces import event, flow, training_steps

EVENTS = [
    *training_steps(2),
    flow("s", 3, "fwdbwd", 1005),
    flow("f", 3, "fwdbwd", 1040, (4711, 4712)),
    event("cpu_op", 'a }, { "b": [1] µ\\', 1300, 2, nested=[{"x": {}}, {"y": "],"}]),
]
FACTS = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": {"rank": 1, "world_size": 2}}
CONTENT = json.dumps({**FACTS, "traceEvents": EVENTS, "after": [{"a": 1}, {"b": 2}]}, ensure_ascii=False).encode()
MEMBER = tarfile.TarInfo("trace.json")
MEMBER.size = len(CONTENT)
FORMS = {
    "object": CONTENT,
    "archive": MEMBER.tobuf() + CONTENT,
    "indented": json.dumps({"traceEvents": EVENTS, **FACTS}, indent=2).encode(),
    "list": json.dumps(EVENTS).encode(),
    "packed": gzip.compress(CONTENT, mtime=0),
    "execution": json.dumps({"nodes": [{"id": number, "name": "n", "attrs": []} for number in range(9)]}).encode(),
}
TIMED = sum(item["ph"] == "X" for item in EVENTS)


def read(content: bytes, piece: int = 1 << 20) -> RankTrace | str:
    """Return the trace, or the message of the refusal; any other exception fails the test."""
    with (
        TemporaryDirectory() as folder,
        patch.object(trace_bytes, "PIECE_BYTES", piece),
        patch.object(trace_bytes, "COMPRESSED_BYTES", piece),
    ):
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        try:
            return read_trace(path)
        except RecordError as error:
            message = str(error)
        assert str(path) in message
        assert "\n" not in message
        return message


@settings(max_examples=150)
@given(st.sampled_from(sorted(FORMS)), st.integers(0, len(FORMS["indented"])), st.sampled_from([7, 97, 1 << 20]))
@example("packed", 10, 7)
def test_any_truncation_is_read_or_refused(form: str, length: int, piece: int) -> None:
    content = FORMS[form][:length]
    trace = read(content, piece)
    if isinstance(trace, RankTrace):
        assert 0 < len(trace.events) <= TIMED
        assert choose_step(trace).end_us >= 0.0
        is_whole = length >= len(FORMS[form]) or form == "list"
        assert bool(trace.notes) or is_whole, "a cut that is not noted"
        if length >= len(FORMS[form]):
            assert (len(trace.events), trace.notes) == (TIMED, ())


@settings(max_examples=150)
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_any_damaged_byte_is_read_or_refused(form: str, data: st.DataObject) -> None:
    content = bytearray(FORMS[form])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    trace = read(bytes(content), data.draw(st.sampled_from([97, 1 << 20])))
    if isinstance(trace, RankTrace):
        assert all(item.end_us >= item.start_us >= 0.0 for item in trace.events)


@settings(max_examples=60)
@given(st.integers(1, len(CONTENT)))
def test_pieces_of_any_size_give_the_same_trace(piece: int) -> None:
    whole, pieces = read(CONTENT), read(CONTENT, piece)
    assert isinstance(whole, RankTrace)
    assert isinstance(pieces, RankTrace)
    assert (whole.events, whole.arrows, whole.rank, whole.notes) == (pieces.events, pieces.arrows, 1, ())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"])
ARGS = st.dictionaries(
    st.sampled_from(["correlation", "External id", "Sequence number", "device", "stream", "Input dims"]), anything
)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), KEYS, anything | ARGS), max_size=6), anything)
def test_any_value_in_any_key_is_read_or_refused(changes: list[tuple[int, str, object]], job: object) -> None:
    events = [dict(item) for item in EVENTS]
    for number, key, value in changes:
        events[number][key] = value
    facts = {"distributedInfo": job, "deviceProperties": job, "baseTimeNanoseconds": job}
    trace = read(json.dumps({**facts, "traceEvents": events}).encode())
    if isinstance(trace, RankTrace):
        choose_step(trace)


NODES = [
    ChakraNode(
        number, f"n{number}", NodeType.COMP, (), tuple(range(number)), 0, 5, attributes={"a": Attribute("int64", -1)}
    )
    for number in range(6)
]


@settings(max_examples=100)
@given(st.data())
def test_chakra_files_are_read_or_refused(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.0.et"
        write_chakra_file(path, ChakraFile(NODES))
        content = bytearray(path.read_bytes())
        del content[data.draw(st.integers(0, len(content))) :]
        for _ in range(data.draw(st.integers(0, 2))):
            if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content))
        try:
            trace, message = read_execution_trace(path), ""
        except RecordError as error:
            trace, message = None, str(error)
    assert (trace is not None and trace.nodes) or (str(path) in message and "\n" not in message)
