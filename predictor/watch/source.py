"""Sources of events: files that a run writes, read as they grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from predictor.watch.events import Event


class Source(Protocol):
    """A file, several rotated files or a folder, followed from its beginning."""

    @property
    def description(self) -> str:
        """Return the path and the format it was taken for."""
        ...

    def poll(self) -> Iterable[Event]:
        """Return the events since the last call; empty where nothing new was written.

        A file that vanished, was truncated or replaced is no error: reading goes on with what is there.
        """
        ...
