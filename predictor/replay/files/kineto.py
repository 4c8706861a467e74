"""Read one rank's trace as PyTorch's profiler (Kineto) writes it, of any version: CUDA, ROCm or CPU.

Older versions write whole microseconds and categories such as « Kernel »; newer ones microseconds with three decimals,
counted from ``baseTimeNanoseconds``. What a version leaves out stays UNKNOWN. What is damaged is left out and noted:
a trace is the record of an expensive run, and most of it is worth more than none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import isfinite
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from predictor.core.base.collector import paused_collector
from predictor.replay.files.events import REPLAY_OF, UNKNOWN, Category, RankTrace, Row, TraceEvent
from predictor.replay.files.flows import LAUNCHES, Flow, arrows_of
from predictor.replay.files.json_stream import TraceFile, stream_events
from predictor.replay.files.record_model import RecordError
from predictor.replay.files.spellings import (
    CATEGORIES,
    ON_STREAMS,
    OTHER_ON_STREAMS,
    PROFILER_SPAN,
    UNSIGNED_NONE,
    KeyPlan,
    key_plan,
)
from predictor.replay.files.trace_metadata import read_metadata

NO_ARGS: Mapping[str, object] = MappingProxyType({})
NUMBERS = (int, float)  # their types alone, as the type of true is a kind of int
LATEST = 1e18  # µs, some thirty thousand years
NS_PER_US = 1000.0

# start since the reader's origin, duration, name, category, row, correlation, external, sequence, args
RawEvent = tuple[float, float, str, Category, int, int, int, int, Mapping[str, object]]


def read_trace(path: Path) -> RankTrace:
    """Read the trace of one rank, .json or .json.gz.

    Raises:
        RecordError: it cannot be read, is no trace, or no event of it is whole.
    """
    reader = _Reader()
    with paused_collector():
        file = stream_events(path, reader.take)
        reader.close_open()
        notes = [*file.notes, *reader.notes()]
        if not reader.events:
            why = f" ({'; '.join(notes)})" if notes else ""
            raise RecordError(f"{path} has no event with a time and a duration{why}")
        return _trace_of(reader, file, notes)


def _trace_of(reader: _Reader, file: TraceFile, notes: Sequence[str]) -> RankTrace:
    raw = reader.events
    first = min(map(itemgetter(0), raw))
    # In place, as a million of them twice would need as much memory again. Whole nanoseconds, so that what ends
    # with what encloses it does so in floats too.
    make = TraceEvent
    events = cast(list[TraceEvent], raw)
    for number, (start, lasts, name, category, row, correlation, external, sequence, args) in enumerate(raw):
        begins = round(start - first, 3)
        ends = round(begins + lasts, 3)
        events[number] = make(name, category, row, begins, ends, correlation, external, sequence, args)
    events.sort(key=itemgetter(4), reverse=True)
    events.sort(key=itemgetter(3))
    metadata = read_metadata(file, events, reader.rows, reader.kinds)
    other = file.facts.get("otherData")
    return RankTrace(
        path=file.path,
        rank=metadata.rank,
        world_size=metadata.world_size,
        backend=metadata.backend,
        device_name=metadata.device_name,
        events=events,
        rows=reader.rows,
        arrows=arrows_of(events, reader.rows, reader.flows, first),
        begin_us=metadata.base_ns / NS_PER_US + (reader.origin or 0) + first,
        notes=(*notes, *metadata.notes),
        groups=metadata.groups,
        is_replay=isinstance(other, dict) and REPLAY_OF in other,
    )


def _number(value: object) -> float | Decimal | None:
    """Return a finite number, also where it was written as text; otherwise None."""
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except InvalidOperation:
            return None
    if isinstance(value, float | Decimal):
        return value if isfinite(value) else None
    return value if type(value) is int else None


class _Reader:
    """Turns events as decoded into raw events, rows and flows."""

    def __init__(self) -> None:
        self.events: list[RawEvent] = []
        self.rows: list[Row] = []
        self.flows: list[Flow] = []
        self.left_out: Counter[str] = Counter()
        self.origin: int | None = None
        self._positions: dict[tuple[bool, object, object], int] = {}
        self.kinds: dict[str, tuple[Category | None, bool]] = {}
        self._plans: dict[tuple[str, ...], KeyPlan] = {}
        self._names: dict[str, str] = {}
        self._open: dict[tuple[object, object], list[Mapping[str, Any]]] = {}

    def notes(self) -> list[str]:
        """Return one line on each kind of event that was left out."""
        return [f"{count} events {why}; left out" for why, count in self.left_out.items()]

    def take(self, items: Sequence[object]) -> None:
        """Read some events."""
        for item in items:
            if not isinstance(item, dict):
                self.left_out["are no objects"] += 1
                continue
            phase = item.get("ph")
            if phase == "X":
                self._complete(item)
            elif phase == "s" or phase == "f":
                self._flow(item, phase)
            elif phase == "B":
                self._open.setdefault(self._thread(item), []).append(item)
            elif phase == "E":
                self._end(item)
            elif phase is None:
                self.left_out["have no kind (ph)"] += 1

    def close_open(self) -> None:
        """Note what began and never ended."""
        unfinished = sum(map(len, self._open.values()))
        if unfinished:
            self.left_out["begin and never end"] = unfinished

    @staticmethod
    def _thread(item: Mapping[str, Any]) -> tuple[object, object]:
        return str(item.get("pid")), str(item.get("tid"))

    def _end(self, item: Mapping[str, Any]) -> None:
        begun = self._open.get(self._thread(item))
        if not begun:
            self.left_out["end and never begin"] += 1
            return
        begin = begun.pop()
        start, end = _number(begin.get("ts")), _number(item.get("ts"))
        lasts = None if start is None or end is None else Decimal(end) - Decimal(start)
        self._complete({**begin, "dur": lasts, "args": {**_arguments(begin), **_arguments(item)}})

    def _complete(self, item: Mapping[str, Any]) -> None:
        """Keep an event with a start and a duration. It runs for every event, so that plain cases come first."""
        start, lasts, kind, name = item.get("ts"), item.get("dur"), item.get("cat"), item.get("name")
        if type(start) not in NUMBERS or type(lasts) not in NUMBERS:
            start, lasts = _number(start), _number(lasts)
            lasts = float(lasts) if isinstance(lasts, Decimal) else lasts
        if start is None or lasts is None or not (-LATEST < start < LATEST and 0 <= lasts < LATEST):
            is_negative = start is not None and lasts is not None and -LATEST < lasts < 0
            why = "have a negative duration" if is_negative else "have no time or no duration"
            self.left_out[why] += 1
            return
        known = self.kinds.get(kind) if type(kind) is str else None
        category, is_gpu = known or self._kind(str(kind or ""))
        if category is None:
            return
        args = item.get("args")
        correlation = external = sequence = UNKNOWN
        if args and isinstance(args, dict):
            keys = tuple(args)
            plan = self._plans.get(keys) or self._plan(keys)
            for old, new in plan.renames:
                args[new] = args.pop(old)
            correlation, external, sequence = plan.identities(args)
        else:
            args = NO_ARGS
        name = self._names.setdefault(name, name) if type(name) is str else str(name or "")
        place = (item.get("pid", ""), item.get("tid", ""))
        row = self._gpu_row(place, args) if is_gpu else self._row(False, *place)
        since = self._since(start)
        self.events.append((since, lasts, name, category, row, correlation, external, sequence, args))

    def _since(self, at: float | Decimal) -> float:
        """Return a time since the first one read, to the last digit that the file has."""
        if self.origin is None:
            self.origin = int(at)
        return float(at - self.origin)

    def _kind(self, kind: str) -> tuple[Category | None, bool]:
        """Return the category of a spelling, None for the profiler's own span, and whether its rows are streams."""
        lower = kind.lower()
        category = None if lower == PROFILER_SPAN else CATEGORIES.get(lower, Category.OTHER)
        self.kinds[kind] = category, category in ON_STREAMS or lower in OTHER_ON_STREAMS
        return self.kinds[kind]

    def _plan(self, keys: tuple[str, ...]) -> KeyPlan:
        plan = self._plans[keys] = key_plan(keys)
        return plan

    def _gpu_row(self, place: tuple[object, object], args: Mapping[str, Any]) -> int:
        """Return the position of a stream's row."""
        device, stream = args.get("device", place[0]), args.get("stream", place[1])
        return self._row(True, device, UNKNOWN if stream in UNSIGNED_NONE else stream)

    def _row(self, is_gpu: bool, process: object, name: object) -> int:
        """Return the position of a row."""
        try:
            return self._positions[is_gpu, process, name]
        except (KeyError, TypeError):  # new, or not hashable
            row = Row(is_gpu, str(process), str(name))
            if row not in self._positions:
                self._positions[row] = len(self.rows)
                self.rows.append(row)
            if isinstance(process, int | str) and isinstance(name, int | str):
                self._positions[is_gpu, process, name] = self._positions[row]
            return self._positions[row]

    def _flow(self, item: Mapping[str, Any], phase: str) -> None:
        """Keep an end of an arrow, unless the event before it says the same by its correlation."""
        kind, number = item.get("cat") or item.get("name") or "", item.get("id")
        if self.events and self.events[-1][5] == number and kind in LAUNCHES:
            return
        at = _number(item.get("ts"))
        if at is not None:
            place = (str(item.get("pid", "")), str(item.get("tid", "")))
            self.flows.append(Flow(phase == "s", str(kind), str(number), *place, self._since(at)))


def _arguments(item: Mapping[str, Any]) -> Mapping[str, Any]:
    args = item.get("args")
    return args if isinstance(args, dict) else NO_ARGS
