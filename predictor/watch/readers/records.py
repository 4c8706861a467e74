"""Records of a run as JSON lines or rows of a table: metrics of any tool, and events in their own field names."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeGuard

from predictor.watch.events import EVALUATION, Activity, DeviceSample, End, Event, Message, Start, Step
from predictor.watch.readers import names
from predictor.watch.readers.lines import LineRecords
from predictor.watch.readers.log_format import GROUPS, Values
from predictor.watch.readers.names import EVALUATION_PREFIXES, LARGEST_STEP, NAMES, Meaning
from predictor.watch.readers.prefix import Clock
from predictor.watch.readers.progress_bar import clock_seconds
from predictor.watch.readers.tracker import LONGEST_TEXT, StepTracker

LONGEST_RECORD = 1 << 20
STEP_KEYS = (
    *("train/global_step", "trainer/global_step", "global_step", "current_steps", "step", "iteration", "iter"),
    *("number", "_step"),
)
EVALUATION_TIMES = ("eval_runtime", "eval/runtime", "time_s", "val_time")
MEANINGS: Mapping[str, Meaning] = {
    **NAMES,
    **{name: GROUPS[name] for name in GROUPS if name not in ("step", "skipped")},
}
# Records of telemetry have the names of the events' fields; ``event`` says which event it is.
EVENTS: Mapping[str, type[Event]] = {
    "step": Step,
    "activity": Activity,
    "start": Start,
    "end": End,
    "message": Message,
    "device": DeviceSample,
}


def event_of(record: Mapping[str, Any]) -> Event | None:
    """Return the event that a record of telemetry is; None of another record, or where a value is of a wrong type."""
    name = record.get("event")
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    converters = _CONVERTERS[kind]
    values = {}
    try:
        for name, value in record.items():
            if value is not None and name in converters:
                values[name] = converters[name](value)
        return kind(**values)
    except TypeError:  # a value of a wrong type, or a field that is needed is not there
        return None


def _float(value: Any) -> float:
    if not _is_number(value):
        raise TypeError
    return float(value)


def _integer(value: Any) -> int:
    return int(_float(value))


def _text(value: Any) -> str:
    return str(value)[:LONGEST_TEXT]


def _floats(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TypeError
    return {name: _float(number) for name, number in value.items()}


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_text, value))


def _converter(kind: str) -> Callable[[Any], Any]:
    """Return what turns a value of JSON into one of a field's type, which raises TypeError of another value."""
    if "Mapping" in kind:
        return _floats
    if "frozenset" in kind:
        return lambda value: frozenset(_texts(value))
    if "tuple" in kind:
        return _texts
    others: dict[str, Callable[[Any], Any]] = {"str": _text, "bool": bool, "int": _integer}
    return others.get(kind.partition(" ")[0], _float)


_CONVERTERS = {
    kind: {field.name: _converter(str(field.type)) for field in fields(kind)} for kind in dict.fromkeys(EVENTS.values())
}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step that a record is of."""
    for key in STEP_KEYS:
        value = record.get(key)
        if _is_number(value) and 0 <= value < LARGEST_STEP:
            return int(value)
    return None


class MetricRecords:
    """Turns metrics by name into events: a step, or an evaluation."""

    def __init__(self, tracker: StepTracker, meanings: Mapping[str, Meaning] = MEANINGS) -> None:
        """Take the run's tracker."""
        self._tracker = tracker
        self._meanings = meanings
        self._clock = Clock()

    def take(self, record: Mapping[str, Any], rank: int | None = None) -> Iterator[Event]:
        """Return the events of a record; none where it has no step, or nothing of use."""
        count = step_of(record)
        if count is None:
            return
        at = self._at(record)
        values: Values = {}
        for key, value in record.items():
            meaning = self._meanings.get(key)
            if meaning is None or key in STEP_KEYS or meaning.name == names.AT:
                continue
            if _is_number(value) or (meaning.name == "loss" and isinstance(value, float)):
                values[meaning.name] = float(value) * meaning.factor
        if isinstance(elapsed := record.get("elapsed_time"), str) and _CLOCK.fullmatch(elapsed):
            values[names.TRAIN_SECONDS] = clock_seconds(elapsed.encode())  # LLaMA-Factory's trainer_log.jsonl
        measured = values.keys() - {names.TARGET, names.CONSUMED_TOKENS, names.CONSUMED_SAMPLES}
        if not measured or record.get("phase") in ("validation", "eval"):
            if record.get("phase") in ("validation", "eval") or any(_is_evaluation(key) for key in record):
                took = next((float(record[key]) for key in EVALUATION_TIMES if _is_number(record.get(key))), None)
                yield Activity(EVALUATION, count, took, at=at)
            return
        own = record.get("rank")
        own = int(own) if _is_number(own) else rank
        yield from self._tracker.step(count, values, at, own)

    def _at(self, record: Mapping[str, Any]) -> float | None:
        for key in ("at", "_timestamp", "timestamp", "wall_time", "time"):
            value = record.get(key)
            if _is_number(value):
                return float(value)
            if isinstance(value, str):
                return self._clock.at(value.encode("utf-8", "replace").replace(b"/", b"-"))
        return None


def _is_evaluation(key: str) -> bool:
    return key.startswith(EVALUATION_PREFIXES) and not key.startswith("value")


class JsonLines(LineRecords):
    """Reads a file of JSON objects, a line each: metrics, or telemetry of a rank."""

    def __init__(self, tracker: StepTracker, rank: int | None = None) -> None:
        """Begin a file, whose records are of a rank unless they say otherwise."""
        super().__init__([b"{"], LONGEST_RECORD)
        self._records = MetricRecords(tracker)
        self._rank = rank

    def _events(self, lines: Iterable[tuple[bytes, int]]) -> Iterator[Event]:
        for line, _ in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(record, dict):
                continue
            if "event" not in record:
                yield from self._records.take(record, self._rank)
            elif (event := event_of(record)) is not None:
                if self._rank is not None and isinstance(event, Step | Activity | Message) and event.rank is None:
                    event = replace(event, rank=self._rank)
                yield event


_CLOCK = re.compile(r"\d{1,6}:\d\d:\d\d")
_RANK_COLUMN = re.compile(r"rank[ _-]?(\d{1,6})(?:[ _-]?(ms|us|s|seconds))?")
_UNITS = {"ms": 1e-3, "us": 1e-6}


class Table(LineRecords):
    """Reads rows of comma-separated values under a header."""

    def __init__(self, row: Callable[[Mapping[str, str]], Iterator[Event]]) -> None:
        """Take what turns a row into events."""
        super().__init__([b","], LONGEST_RECORD)
        self._row = row
        self._header: list[str] | None = None

    def _events(self, lines: Iterable[tuple[bytes, int]]) -> Iterator[Event]:
        for line, _ in lines:
            try:
                cells = [cell.strip() for cell in next(csv.reader([line.decode("utf-8-sig", "replace")]))]
            except (csv.Error, StopIteration):
                continue
            if self._header is None or cells == self._header or len(cells) > len(self._header):
                self._header = cells
            else:
                yield from self._row(dict(zip(self._header, cells, strict=False)))


def metric_rows(tracker: StepTracker) -> Table:
    """Return the reader of a table of metrics: Lightning's ``metrics.csv``, or step times of ranks.

    Ranks are in a column ``rank``, or have a column each (``rank0``, ``rank_1_ms``).
    """
    records = MetricRecords(tracker)

    def row(cells: Mapping[str, str]) -> Iterator[Event]:
        record: dict[str, Any] = {}
        for key, cell in cells.items():
            if cell:
                value = names.number(cell.encode("utf-8", "replace")) if key not in ("time", "timestamp") else None
                record[key] = cell if value is None else value
        yield from records.take(record)
        count = step_of(record)
        for key, value in record.items():
            if (column := _RANK_COLUMN.fullmatch(key)) and _is_number(value) and count is not None and value > 0:
                yield Step(count, float(value) * _UNITS.get(column[2] or "s", 1.0), rank=int(column[1]))

    return Table(row)
