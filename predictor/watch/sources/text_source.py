"""Sources of one file each: bytes of a growing file through a reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from predictor.watch.events import Event
from predictor.watch.sources.growing_file import GrowingFile

IDLE_S = 10.0  # after which no further line of a step is expected


class Reader(Protocol):
    """Turns bytes of one file into events."""

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of further bytes."""
        ...

    def settle(self) -> Iterator[Event]:
        """Return the events of whole records that wait for others, as nothing has come for a while."""
        ...

    def finish(self) -> Iterator[Event]:
        """Return the events of all that waits for more to come."""
        ...


class FileSource:
    """A file that is followed with one reader; a file that replaces it gets a new one."""

    def __init__(self, path: Path, name: str, make: Callable[[], Reader], is_live: bool = True) -> None:
        """Take the file, the name of its format and what makes readers of it.

        Args:
            path: of the file.
            name: of its format.
            make: a reader.
            is_live: more may come; else what waits is reported at once.
        """
        self._file = GrowingFile(path)
        self._name = name
        self._make = make
        self._reader: Reader | None = None
        self._generation = 0
        self._is_live = is_live
        self._waits = False

    @property
    def block(self) -> int:
        """Return how many bytes are read at once."""
        return self._file.block

    @block.setter
    def block(self, size: int) -> None:
        self._file.block = size

    @property
    def description(self) -> str:
        """Return the path and the format."""
        return f"{self._file.path}: {self._name}"

    def poll(self) -> Iterator[Event]:
        """Return the events since the last call."""
        for block in self._file.blocks():
            if self._reader is None or self._file.generation > max(self._generation, 1):
                if self._reader is not None:
                    yield from self._reader.finish()
                self._reader = self._make()
            self._generation = self._file.generation
            self._waits = True
            yield from self._reader.feed(block)
        if self._waits and not (self._is_live and self._is_written_now()):
            self._waits = False
            if self._reader is not None:
                yield from self._reader.settle() if self._is_live else self._reader.finish()

    def _is_written_now(self) -> bool:
        written = self._file.written_at
        return written is not None and time.time() - written < IDLE_S
