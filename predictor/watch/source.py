"""Sources of events: files that a run writes, read as they grow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from predictor.watch.events import Event
from predictor.watch.sources.opening import open_run


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


def open_sources(paths: Iterable[Path | str], pattern: str | None = None, is_live: bool = True) -> list[Source]:
    """Return the sources of a run's logs, event files, folders and side files.

    Files that are not there yet are waited for. Of several kinds of files that state the same steps, one is read.

    Args:
        paths: of files and folders of one run.
        pattern: a regular expression with named groups, for logs of no known format.
        is_live: more may be written; else ``poll`` keeps nothing back for it.

    Raises:
        ConfigError: a file is of no known format, or the pattern is none.
    """
    return list(open_run([Path(path) for path in paths], pattern, is_live))
