"""Binary logs: TensorBoard's event files and W&B's transaction log, without either library.

Sources: ``tensorflow/tsl/lib/io/record_writer.h`` (framing of TFRecord), ``tensorboard/compat/proto/event.proto``,
``summary.proto`` and ``tensor.proto``; ``wandb/sdk/internal/datastore.py`` (LevelDB's log format) and
``wandb/proto/wandb_internal.proto``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from math import isfinite
from typing import Any

from predictor.core.base.wire import FIXED32, FIXED64, LENGTH, VARINT, WireError, fields
from predictor.watch.events import EVALUATION, Activity, End, Event
from predictor.watch.readers import names
from predictor.watch.readers.log_format import Values
from predictor.watch.readers.names import EVALUATION_PREFIXES, NAMES
from predictor.watch.readers.records import MetricRecords
from predictor.watch.readers.tracker import StepTracker

LARGEST_RECORD = 1 << 26
# Tags whose step is a number of samples.
OTHER_AXIS = (" vs samples", "Train/Samples/", "/Samples")


class EventFile:
    """Reads a TensorBoard event file: the scalars of a step are its values, its time is the last one's."""

    def __init__(self, tracker: StepTracker, rank: int | None = None, host: str = "") -> None:
        """Begin a file, whose writer runs on a host."""
        self._tracker = tracker
        self._rank = rank
        self._host = host
        self._data = b""
        self._step: int | None = None
        self._values: Values = {}
        self._at: float | None = None
        self._axis: str | None = None  # the tag whose steps count

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of a block; a record that is cut waits, a damaged file ends."""
        self._data += block
        at = 0
        while len(self._data) >= at + 12:
            (size,) = struct.unpack_from("<Q", self._data, at)
            if size > LARGEST_RECORD:
                self._data = b""
                return
            end = at + 12 + size + 4
            if len(self._data) < end:
                break
            yield from self._record(self._data[at + 12 : end - 4])
            at = end
        self._data = self._data[at:]

    def settle(self) -> Iterator[Event]:
        """Return the step whose scalars do not go on."""
        return self.finish()

    def finish(self) -> Iterator[Event]:
        """Return the step whose scalars may go on."""
        if self._step is not None and self._values:
            step, self._step = self._step, None
            yield from self._tracker.step(step, self._values, self._at, self._rank)
        self._values = {}

    def _record(self, data: bytes) -> Iterator[Event]:
        """Return the events of an Event: wall_time 1, step 2, file_version 3, summary 5."""
        wall, step, summary = None, 0, None
        try:
            for number, kind, value in fields(data):
                if number == 1 and kind == FIXED64 and isinstance(value, bytes):
                    (wall,) = struct.unpack("<d", value)
                elif number == 2 and kind == VARINT and isinstance(value, int):
                    step = value
                elif number == 3:
                    known: dict[str, Any] = {"hosts": (self._host,)} if self._host else {}
                    self._tracker.start(at=wall, **known)
                elif number == 5 and kind == LENGTH and isinstance(value, bytes):
                    summary = value
            if summary is None or step >= 1 << 62:
                return
            for number, kind, value in fields(summary):
                if number == 1 and kind == LENGTH and isinstance(value, bytes):
                    yield from self._scalar(*_scalar(value), step, wall if wall and isfinite(wall) else None)
        except (WireError, struct.error):
            return

    def _scalar(self, tag: str, value: float | None, step: int, at: float | None) -> Iterator[Event]:
        if value is None or any(other in tag for other in OTHER_AXIS):
            return
        if tag.startswith(EVALUATION_PREFIXES):
            if tag not in ("eval/loss", "eval_loss", "val_loss", "lm loss validation") and "runtime" not in tag:
                return
            yield from self.finish()
            yield Activity(EVALUATION, step, value if "runtime" in tag else None, at=at)
            return
        meaning = NAMES.get(tag) or NAMES.get(tag.partition("/")[2])
        if meaning is None or meaning.name in (names.NUMBER, names.TARGET, names.AT):
            return
        self._axis = self._axis or tag
        if (tag == self._axis and step != self._step) or self._step is None:
            yield from self.finish()
            self._step, self._at = step, at
        if step == self._step and (isfinite(value) or meaning.name == "loss"):
            self._values[meaning.name] = value * meaning.factor


def _scalar(data: bytes) -> tuple[str, float | None]:
    """Return tag and value of a Summary.Value: tag 1, simple_value 2, tensor 8 of one float.

    Raises:
        WireError: the bytes are none.
    """
    tag, value = "", None
    for number, kind, content in fields(data):
        if not isinstance(content, bytes):
            continue
        if number == 1 and kind == LENGTH:
            tag = content.decode("utf-8", "replace")
        elif number == 2 and kind == FIXED32:
            (value,) = struct.unpack("<f", content)
        elif number == 8 and kind == LENGTH:
            value = _of_tensor(content)
    return tag, value


def _of_tensor(data: bytes) -> float | None:
    """Return the only value of a TensorProto: dtype 1, tensor_content 4, float_val 5, double_val 6."""
    kinds = {1: "<f", 2: "<d"}
    dtype = 0
    for number, _, content in fields(data):
        if number == 1 and isinstance(content, int):
            dtype = content
        elif number in (4, 5, 6) and isinstance(content, bytes):
            form = kinds.get(dtype, "") if number == 4 else "<f" if number == 5 else "<d"
            if form and len(content) == struct.calcsize(form):
                return float(struct.unpack(form, content)[0])
    return None


BLOCK = 32768
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbLog:
    """Reads ``run-ID.wandb``: rows of history, and how the run ended."""

    def __init__(self, tracker: StepTracker, rank: int | None = None) -> None:
        """Begin a file."""
        self._records = MetricRecords(tracker)
        self._tracker = tracker
        self._rank = rank
        self._data = b""
        self._begin = 0  # of the data, in the file
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of a block; a record that is cut waits."""
        self._data += block
        at = 0
        if not self._begin:
            if len(self._data) < HEADER:
                return
            at = HEADER  # ":W&B", its magic number and its version
        while True:
            left = BLOCK - (self._begin + at) % BLOCK
            padding = left if left < HEADER else 0
            if len(self._data) < at + padding + HEADER:
                break
            at += padding
            checksum, length, kind = struct.unpack_from("<IHB", self._data, at)
            end = at + HEADER + length
            if len(self._data) < end:
                break
            content = self._data[at + HEADER : end]
            at = end
            if zlib.crc32(content, zlib.crc32(bytes([kind]))) == checksum:
                yield from self._part(kind, content)
        self._data, self._begin = self._data[at:], self._begin + at

    def settle(self) -> Iterator[Event]:
        """Return nothing: a row is whole or not there."""
        yield from ()

    def finish(self) -> Iterator[Event]:
        """Return nothing, likewise."""
        yield from ()

    def _part(self, kind: int, content: bytes) -> Iterator[Event]:
        if kind in (FULL, FIRST):
            self._parts, self._size = [], 0
        self._size += len(content)
        if self._size <= LARGEST_RECORD:
            self._parts.append(content)
        if kind in (FULL, LAST):
            data, self._parts = b"".join(self._parts), []
            try:
                yield from self._record(data)
            except WireError:
                return

    def _record(self, data: bytes) -> Iterator[Event]:
        """Return the events of a Record: history 2, run 17, exit 18.

        Raises:
            WireError: the bytes are none.
        """
        for number, kind, value in fields(data):
            if kind != LENGTH or not isinstance(value, bytes):
                continue
            if number == 2:
                yield from self._records.take(_history(value), self._rank)
            elif number == 17:
                self._tracker.start(**_run(value))
            elif number == 18:
                code = next((found for field, _, found in fields(value) if field == 1), 0)
                yield End("completed" if not code else "FAILED")


def _history(data: bytes) -> dict[str, Any]:
    """Return a row of a HistoryRecord: items 1 (key 1, nested_key 2, value_json 16), step 2 (num 1).

    Raises:
        WireError: the bytes are none.
    """
    row: dict[str, Any] = {}
    for number, kind, value in fields(data):
        if kind != LENGTH or not isinstance(value, bytes):
            continue
        if number == 2:
            row["_step"] = next((found for field, _, found in fields(value) if field == 1), 0)
            continue
        keys, text = [], b""
        for field, _, found in fields(value):
            if isinstance(found, bytes):
                if field == 16:
                    text = found
                elif field in (1, 2) and found:
                    keys.append(found.decode("utf-8", "replace"))
        try:
            row["/".join(keys)] = json.loads(text)
        except (ValueError, RecursionError):
            continue
    return row


def _run(data: bytes) -> dict[str, Any]:
    """Return what a RunRecord says of a start: host 13, start_time 17 (seconds 1).

    Raises:
        WireError: the bytes are none.
    """
    known: dict[str, Any] = {}
    for number, kind, value in fields(data):
        if kind == LENGTH and isinstance(value, bytes):
            if number == 13 and value:
                known["hosts"] = (value.decode("utf-8", "replace"),)
            elif number == 17:
                at = next((found for field, _, found in fields(value) if field == 1), None)
                if isinstance(at, int) and at < 1 << 40:
                    known["at"] = float(at)
    return known
