"""steps.jsonl: a JSON line for every optimizer step and validation, none twice however often a run is resumed."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

log = logging.getLogger(__name__)
_ENCODER = json.JSONEncoder(allow_nan=False)  # json.dumps would make one for every line


class StepLog:
    """Lines appended to a file; what cannot be written is kept for the next time."""

    def __init__(self, path: Path) -> None:
        """Say where the file is or will be; ``open`` comes first."""
        self._path = path
        self._stream: BinaryIO | None = None
        self._size = 0
        self._pending: list[bytes] = []
        self._is_failing = False
        self.lines = 0

    def open(self, keep_lines: int) -> None:
        """Keep the first lines, as many as the resumed state had written, and append from there.

        Raises:
            OSError: the file cannot be opened.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._path.open("ab+", buffering=0)
        self._stream.seek(0)
        self.lines = self._size = 0
        with self._path.open("rb") as lines:
            for line in lines:
                if self.lines == keep_lines or not line.endswith(b"\n"):
                    break
                self.lines += 1
                self._size += len(line)
        self._stream.truncate(self._size)
        if self.lines < keep_lines:
            log.warning("%s has %d lines, the checkpoint %d; going on after them", self._path, self.lines, keep_lines)

    def add(self, values: Mapping[str, Any]) -> None:
        """Take a line; ``write`` writes it. Numbers that JSON cannot say are null."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self._pending.append(_ENCODER.encode(finite).encode() + b"\n")

    def write(self) -> None:
        """Append what was taken; a full disk is said once, and the lines are kept."""
        if not self._pending or self._stream is None:
            return
        data = b"".join(self._pending)
        try:
            if self._stream.write(data) != len(data):
                raise OSError(None, "the disk is full")
        except OSError as error:
            if not self._is_failing:
                log.warning("%s: %s; lines are kept in memory until it can be written", self._path, error.strerror)
            self._is_failing = True
            self._take_back()
            return
        self._is_failing = False
        self._size += len(data)
        self.lines += len(self._pending)
        self._pending.clear()

    def _take_back(self) -> None:
        """Remove half a line."""
        try:
            os.truncate(self._path, self._size)
        except OSError as error:
            log.debug("%s: %s", self._path, error)

    def sync(self) -> None:
        """Make it durable, before a checkpoint says how many lines there are."""
        self.write()
        if self._stream is not None and not self._is_failing:
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Write what is left and close the file."""
        self.write()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
