"""A file of JSON lines that grows by appending: crash-safe, of bounded size, and patient with a full disk."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20  # then the file begins anew, and one older file is kept beside it
KEPT_LINES = 1000  # while the disk is full
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class JsonLines:
    """Lines of a file; what a full disk refuses is tried again, the newest lines only."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        """Open a file for appending.

        Raises:
            OSError: it cannot be opened.
        """
        self._path = path
        self._limit_bytes = limit_bytes
        self._pending: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._is_failing = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor, self._size = self._open()

    def _open(self) -> tuple[int, int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a killed process left half a line
            self._pending.appendleft(b"\n")
        return descriptor, size

    def add(self, values: Mapping[str, Any]) -> None:
        """Take a line; numbers that JSON cannot say are null."""
        try:
            text = _ENCODER.encode(values)
        except ValueError:
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
            text = _ENCODER.encode(finite)
        self._pending.append(text.encode() + b"\n")

    def write(self) -> None:
        """Append what was taken; a full disk is said once."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(None, "the disk is full")
        except OSError as error:
            if not self._is_failing:
                log.warning("%s: %s; the newest lines are kept until it can be written", self._path, error.strerror)
            self._is_failing = True
            self._take_back()
            return
        self._is_failing = False
        self._pending.clear()
        self._size += len(data)
        if self._size >= self._limit_bytes:
            self._begin_anew()

    def close(self) -> None:
        """Write what is left and close the file."""
        self.write()
        os.close(self._descriptor)

    def _take_back(self) -> None:
        """Remove half a line."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            log.debug("%s: %s", self._path, error)

    def _begin_anew(self) -> None:
        """Set the full file aside, in the place of the one before it."""
        try:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            descriptor, size = self._open()
        except OSError as error:
            log.warning("%s: %s; it grows on", self._path, error.strerror)
            self._limit_bytes *= 2
            return
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, size
