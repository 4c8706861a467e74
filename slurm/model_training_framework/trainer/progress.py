"""A progress line on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24
LEAST_INTERVAL_S = 0.1


class ProgressBar:
    """One line on stderr that is written over; nothing where that is no terminal."""

    def __init__(self, is_wanted: bool, stream: TextIO | None = None) -> None:
        """Say whether a bar is wanted."""
        self._stream = stream or sys.stderr
        self.is_shown = is_wanted and self._stream.isatty()
        self._next = 0.0

    def show(self, done: int, total: int | None, text: str) -> None:
        """Show how far it is, at most ten times a second."""
        now = time.monotonic()
        if not self.is_shown or now < self._next:
            return
        self._next = now + LEAST_INTERVAL_S
        share = f"{done}/{total}" if total else str(done)
        filled = WIDTH * min(done, total) // total if total else 0
        bar = f"[{'#' * filled}{'.' * (WIDTH - filled)}] " if total else ""
        self._stream.write(f"\r{bar}step {share} {text}\x1b[K")
        self._stream.flush()

    def close(self) -> None:
        """Leave the line."""
        if self.is_shown and self._next:
            self._stream.write("\n")
            self._stream.flush()
