"""Logs cut anywhere give the same events, and hostile bytes never raise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from predictor.watch.events import Event
from predictor.watch.readers.devices import Accounting, Dmon, nvidia_smi
from predictor.watch.readers.lines import LONGEST_LINE, LineFinder
from predictor.watch.readers.log_reader import LogReader
from predictor.watch.readers.pattern import pattern_format
from predictor.watch.readers.records import JsonLines, metric_rows
from predictor.watch.readers.table import EXAMPLES, TABLE
from predictor.watch.readers.tracker import StepTracker
from predictor.watch.source import open_sources
from predictor.watch.sources.event_files import EventFile, WandbLog
from predictor.watch.sources.text_source import Reader
from tests.unit.watch import event_bytes

EVENT_FILE = event_bytes.version(10.0) + b"".join(
    event_bytes.scalar(tag, value, step, 10.0 + step, as_tensor=bool(step % 2))
    for step in (1, 2, 3)
    for tag, value in (("train/loss", 3.0), ("iteration-time", 0.5), ("lm loss vs samples", 1.0))
)
WANDB = event_bytes.wandb_file(
    [
        event_bytes.run("node-1", 5),
        *(event_bytes.history({"train/loss": 2.0, "_timestamp": 9.0, "text": "x" * 30_000}, step) for step in range(5)),
        event_bytes.ended(1),
    ]
)
STEPS = b"".join(
    b'{"phase": "train", "step": %d, "epoch": 0, "loss": 1.5, "lr": 0.1, "step_time_s": 0.25}\n' % step
    for step in range(9)
)
TELEMETRY = b'{"event": "start", "at": 1.0, "hosts": ["a"], "world_size": 2, "tool": "t"}\n' + b"".join(
    b'{"event": "step", "number": %d, "seconds": 0.2, "at": 2.0, "rank": 1, "parts": {"data": 0.1}, "counters": {}}\n'
    % step
    for step in range(5)
)
SMI = (
    b"timestamp, index, power.draw [W], clocks.current.sm [MHz], clocks_event_reasons.active\n"
    b"2026/03/02 10:00:00.100, 0, 690.10 W, 1980 MHz, 0x0000000000000000\n"
    b"2026/03/02 10:00:01.100, 0, 699.90 W, 1200 MHz, 0x0000000000000004\n"
)
DMON = b"#Entity   SMCLK  POWER\nID        MHz    W\nGPU 0     1980   690.0\nGPU 1     1200   699.0\n"
SACCT = b"JobID|State|End|NodeList\n12|TIMEOUT|2026-03-02T12:00:00|n[1-2]\n12.batch|CANCELLED|y|z\n"
CSV = b"epoch,step,train_loss,val_loss,seconds\n0,1,2.5,,0.5\n0,2,2.4,,0.5\n0,2,,2.6,\n"
READERS: dict[str, tuple[Callable[[], Reader], bytes]] = {
    known.name: (lambda known=known: LogReader(known), (EXAMPLES / known.example).read_bytes()) for known in TABLE
} | {
    "event file": (lambda: EventFile(StepTracker()), EVENT_FILE),
    "W&B": (lambda: WandbLog(StepTracker()), WANDB),
    "steps.jsonl": (lambda: JsonLines(StepTracker()), STEPS),
    "telemetry": (lambda: JsonLines(StepTracker(), 1), TELEMETRY),
    "nvidia-smi": (nvidia_smi, SMI),
    "dmon": (Dmon, DMON),
    "sacct": (lambda: Accounting([]), SACCT),
    "CSV": (lambda: metric_rows(StepTracker()), CSV),
    "--pattern": (
        lambda: LogReader(pattern_format(r"iter (?P<step>\d+): loss (?P<loss>\S+), time (?P<ms>[\d.]+)ms")),
        (EXAMPLES / "nanogpt.log").read_bytes(),
    ),
}


def events(make: Callable[[], Reader], pieces: list[bytes]) -> list[Event]:
    reader = make()
    return [*(event for piece in pieces for event in reader.feed(piece)), *reader.finish()]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(ends)]


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=30, deadline=None)
@given(places=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_cutting_changes_no_event(name: str, places: list[int]) -> None:
    make, data = READERS[name]
    assert events(make, cut(data, places)) == events(make, [data])


@pytest.mark.parametrize("name", READERS)
def test_byte_by_byte_changes_no_event(name: str) -> None:
    make, data = READERS[name]
    data = data[-3000:] if "W&B" not in name and "event" not in name else data[:3000]
    whole = events(make, [data])
    assert events(make, [data[i : i + 1] for i in range(len(data))]) == whole


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_files_raise_nothing(name: str, data: st.DataObject) -> None:
    make, content = READERS[name]
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 6))):
        place = data.draw(st.integers(0, len(damaged)))
        length = data.draw(st.integers(0, 40))
        damaged[place : place + length] = data.draw(st.binary(max_size=40) | st.sampled_from(HOSTILE))
    for event in events(make, cut(bytes(damaged), [data.draw(st.integers(0, 10_000))])):
        assert isinstance(event.at, float | None)


HOSTILE = (
    *(b"9" * 400, b"1e999", b"nan", b"-inf", b"1.2.3", b",", b"\x1b[", b"\0\0", b"{" * 2000, b"[" * 2000, b"\xff\xfe"),
    *(b'"', b"|" * 500, b"%|", b"]:", b"\n\r\n", b"=", b"..", b" .. ", b"0x", b"\x80" * 12, b"step: "),
    *(b'{"step": 1e400}\n', b'{"step": -1}\n', b'{"step": 1, "loss": %s}\n' % (b"9" * 400)),
)
NUMBER = re.compile(rb"\d[\d.]*")


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("event file", "W&B")])
@pytest.mark.parametrize(
    "value", [b"9" * 400, b"1e999", b"1.2.3", b"nan", b"-1", b"0", b""], ids=lambda value: value[:5]
)
def test_numbers_of_any_size_raise_nothing(name: str, value: bytes) -> None:
    make, content = READERS[name]
    found = events(make, [NUMBER.sub(value, content)])
    for place in NUMBER.finditer(content):
        found += events(make, [content[: place.start()] + value + content[place.end() :]])
    assert all(isfinite(number) for event in found for number in floats(event))


def floats(event: Event) -> Iterator[float]:
    for field in fields(event):
        value = getattr(event, field.name)
        yield from (value.values() if isinstance(value, dict) else (value,) if isinstance(value, float) else ())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(HOSTILE) | st.binary(max_size=30), max_size=30))
def test_any_bytes_raise_nothing(pieces: list[bytes]) -> None:
    for make, _ in READERS.values():
        events(make, pieces)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(HOSTILE) | st.binary(max_size=60), max_size=20),
    st.sampled_from(("a.log", "b.csv", "c.jsonl")),
)
def test_a_folder_of_any_bytes_is_read(tmp_path: Path, pieces: list[bytes], name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"".join(pieces))
    for source in open_sources([tmp_path], is_live=False):
        list(source.poll())
    path.unlink()


def test_an_endless_line_is_bounded() -> None:
    finder = LineFinder([b"step"])
    for _ in range(1000):
        assert finder.feed(b"x" * 5000) == []
    assert len(finder._carry) <= LONGEST_LINE
    assert finder.feed(b"step\nstep\n") == [(b"step", 0)]


@given(st.integers(LONGEST_LINE - 20, LONGEST_LINE + 20), st.integers(0, LONGEST_LINE + 40))
def test_a_word_beyond_the_longest_line_is_in_none(length: int, place: int) -> None:
    data = b"x" * length + b"word" + b"y" * 10 + b"\n"
    whole = LineFinder([b"word"]).feed(data)
    pieces = LineFinder([b"word"])
    assert pieces.feed(data[:place]) + pieces.feed(data[place:]) == whole
    assert bool(whole) == (length + 4 <= LONGEST_LINE)
