"""Read one rank's trace as PyTorch's profiler (Kineto) writes it, of any version: CUDA, ROCm or CPU.

Older versions write whole microseconds and categories such as « Kernel »; newer ones microseconds with three decimals,
counted from ``baseTimeNanoseconds``. What a version leaves out stays UNKNOWN. What is damaged is left out and noted:
a trace is the record of an expensive run, and most of it is worth more than none.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from predictor.traces.closed import RecordError
from predictor.traces.events import UNKNOWN, Category, RankTrace, Row, TraceEvent
from predictor.traces.flows import LAUNCHES, Flow, arrows_of
from predictor.traces.json_stream import TraceFile, stream_events
from predictor.traces.origin import origin_of
from predictor.traces.spellings import (
    CATEGORIES,
    CORRELATION,
    COUNTERS_OF_KERNELS,
    EXTERNAL,
    ON_STREAMS,
    PROFILER_SPAN,
    SEQUENCE,
    KeyPlan,
    key_plan,
)

NO_ARGS: Mapping[str, object] = MappingProxyType({})
UNSIGNED_NONE = (2**32 - 1, 2**64 - 1)  # -1 printed as an unsigned number
NS_PER_US = 1000.0

# start, duration, name, category, row, correlation, external, sequence, args; times as the file has them
RawEvent = tuple[float, float, str, Category, int, int, int, int, Mapping[str, object]]


def read_trace(path: Path) -> RankTrace:
    """Read the trace of one rank, .json or .json.gz.

    Raises:
        RecordError: it cannot be read, is no trace, or no event of it is whole.
    """
    reader = _Reader()
    with _without_collector():
        file = stream_events(path, reader.take)
        reader.close_open()
        notes = [*file.notes, *reader.notes()]
        if not reader.events:
            why = f" ({'; '.join(notes)})" if notes else ""
            raise RecordError(f"{path} has no event with a time and a duration{why}")
        return _trace_of(reader, file, notes)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's collector of circular garbage from visiting a million new events again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trace_of(reader: _Reader, file: TraceFile, notes: Sequence[str]) -> RankTrace:
    raw = reader.events
    first = min(map(itemgetter(0), raw))
    # In place, as a million of them twice would need as much memory again. Whole nanoseconds, so that what ends
    # with what encloses it does so in floats too.
    make = TraceEvent
    events = cast(list[TraceEvent], raw)
    for number, (start, lasts, name, category, row, correlation, external, sequence, args) in enumerate(raw):
        begins = round(float(start - first), 3)
        ends = round(begins + lasts, 3)
        events[number] = make(name, category, row, begins, ends, correlation, external, sequence, args)
    events.sort(key=itemgetter(4), reverse=True)
    events.sort(key=itemgetter(3))
    origin = origin_of(file, events, reader.rows)
    return RankTrace(
        path=file.path,
        rank=origin.rank,
        world_size=origin.world_size,
        backend=origin.backend,
        device_name=origin.device_name,
        events=events,
        rows=reader.rows,
        arrows=arrows_of(events, reader.rows, reader.flows, first),
        begin_us=origin.base_ns / NS_PER_US + first,
        notes=(*notes, *origin.notes),
        groups=origin.groups,
    )


def _number(value: object) -> float | None:
    """Return a finite number, also where it was written as text; otherwise None."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return value


def _identity(value: object) -> int:
    """Return a number that ties events together; UNKNOWN where there is none."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float) or value in UNSIGNED_NONE:
        return UNKNOWN
    return int(value) if isfinite(value) and value >= 0 else UNKNOWN


class _Reader:
    """Turns events as decoded into raw events, rows and flows."""

    def __init__(self) -> None:
        self.events: list[RawEvent] = []
        self.rows: list[Row] = []
        self.flows: list[Flow] = []
        self.left_out: Counter[str] = Counter()
        self._positions: dict[tuple[object, object, bool], int] = {}
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
                self._complete(item, item.get("ts"), item.get("dur"))
            elif phase in ("s", "f", "t"):
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
        lasts = None if start is None or end is None else end - start
        args = {**_arguments(begin), **_arguments(item)}
        self._complete({**begin, "args": args}, start, lasts)

    def _complete(self, item: Mapping[str, Any], start: object, lasts: object) -> None:
        """Keep an event with a start and a duration."""
        if type(start) not in (int, float) or type(lasts) not in (int, float):
            start, lasts = _number(start), _number(lasts)
        if start is None or lasts is None or start - start or lasts - lasts:  # type: ignore[operator]  # NaN, infinity
            self.left_out["have no time or no duration"] += 1
            return
        if lasts < 0:  # type: ignore[operator]  # a number by now
            self.left_out["have a negative duration"] += 1
            return
        kind = item.get("cat", "")
        category = CATEGORIES.get(kind) or self._category(str(kind))
        if category is None:
            return
        args = item.get("args") or NO_ARGS
        correlation = external = sequence = UNKNOWN
        if isinstance(args, dict):
            plan = self._plans.get(tuple(args)) or self._plan(args)
            for old, new in plan.renames:
                args[new] = args.pop(old)
            if plan.has_correlation:
                correlation = _identity(args[CORRELATION]) or UNKNOWN
            if plan.has_external:
                external = _identity(args[EXTERNAL]) or UNKNOWN
            if plan.has_sequence:
                sequence = _identity(args[SEQUENCE])
            if external == correlation:  # older versions repeat it where they know no operator
                external = UNKNOWN
        else:
            args = NO_ARGS
        name = str(item.get("name", ""))
        name = self._names.setdefault(name, name)
        row = self._row(item, category, args, kind == COUNTERS_OF_KERNELS)
        self.events.append((start, lasts, name, category, row, correlation, external, sequence, args))  # type: ignore[arg-type]

    def _category(self, kind: str) -> Category | None:
        """Return the category of a spelling that is not in the table; None for the profiler's own span."""
        kind = kind.lower()
        return None if kind == PROFILER_SPAN else CATEGORIES.get(kind, Category.OTHER)

    def _plan(self, args: Mapping[str, object]) -> KeyPlan:
        plan = self._plans[tuple(args)] = key_plan(tuple(args))
        return plan

    def _row(self, item: Mapping[str, Any], category: Category, args: Mapping[str, Any], is_counter: bool) -> int:
        """Return the position of an event's row."""
        is_gpu = is_counter or category in ON_STREAMS
        process, thread = item.get("pid", ""), item.get("tid", "")
        if is_gpu:
            process, thread = args.get("device", process), args.get("stream", thread)
            if thread in UNSIGNED_NONE:
                thread = UNKNOWN
        try:
            return self._positions[process, thread, is_gpu]
        except (KeyError, TypeError):
            row = Row(is_gpu, str(process), str(thread))
            key = (row.process, row.name, is_gpu)
            if key not in self._positions:
                self._positions[key] = len(self.rows)
                self.rows.append(row)
            if isinstance(process, int | str) and isinstance(thread, int | str):
                self._positions[process, thread, is_gpu] = self._positions[key]
            return self._positions[key]

    def _flow(self, item: Mapping[str, Any], phase: str) -> None:
        """Keep an end of an arrow, unless the event before it says the same by its correlation."""
        at = _number(item.get("ts"))
        kind = str(item.get("cat") or item.get("name") or "")
        number = item.get("id")
        if kind in LAUNCHES and self.events and self.events[-1][5] == number:
            return
        if at is None or phase == "t":
            return
        self.flows.append(Flow(phase == "s", kind, str(number), str(item.get("pid", "")), str(item.get("tid", "")), at))


def _arguments(item: Mapping[str, Any]) -> Mapping[str, Any]:
    args = item.get("args")
    return args if isinstance(args, dict) else NO_ARGS
