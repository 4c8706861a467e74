"""A watched run: its sources, its monitor, its step times, and what its log contradicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from threading import Lock

from predictor.watch.contradictions import Contradictions
from predictor.watch.events import End, Event, Start, Step
from predictor.watch.health import Expected, Health
from predictor.watch.monitor import Monitor
from predictor.watch.series import StepSeries
from predictor.watch.source import open_sources

AT_ONCE = 1000  # events, between which another thread may ask for the health
MOST_LOOKED_AT = 10_000  # files of a folder, for when the newest was written


class WatchedRun:
    """Reads what was written, and says how the run stands; both from any thread.

    A live run's silence is counted by this machine's steady clock: that of the log may be of another zone, and jump.
    """

    def __init__(
        self, paths: Sequence[str], pattern: str | None = None, expected: Expected | None = None, is_live: bool = False
    ) -> None:
        """Open the run's files, unread.

        Args:
            paths: logs, event files, side files, and folders of them.
            pattern: of a step's line, for logs of no known format.
            expected: the prediction of its step.
            is_live: more may be written, and silence may be a stall.

        Raises:
            ConfigError: a file is of no known format, or the pattern is none.
        """
        self._sources = open_sources(paths, pattern, is_live)
        self._monitor = Monitor(expected)
        self._contradictions = Contradictions(expected)
        self._lock = Lock()
        self._is_live = is_live
        self._last_at: float | None = None
        self._heard_at = time.monotonic() - _silence(paths)
        self._has_read = False
        self.series = StepSeries()
        self.is_ended = False

    def compare_with(self, other: Health) -> None:
        """Take note of a run of the same plan: what both change at the same step is the plan's."""
        with self._lock:
            self._monitor.compare_with(other)

    @property
    def descriptions(self) -> list[str]:
        """Return path and format of every source."""
        return [source.description for source in self._sources]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Return what the log contradicts of the configuration, a sentence each."""
        return self._contradictions.sentences

    def poll(self) -> None:
        """Read what was written since the last call."""
        events = chain.from_iterable(source.poll() for source in self._sources)
        is_new = False
        while some := list(islice(events, AT_ONCE)):
            is_new = True
            with self._lock:
                for event in some:
                    self._take(event)
        if is_new and self._has_read:
            self._heard_at = time.monotonic()
        self._has_read = True

    def _take(self, event: Event) -> None:
        self._monitor.take(event)
        self._contradictions.take(event)
        if event.at is not None:
            self._last_at = event.at if self._last_at is None else max(event.at, self._last_at)
        if isinstance(event, End):
            self.is_ended = True
        elif isinstance(event, Start | Step):
            self.is_ended = False
        if isinstance(event, Step):
            self.series.take(event)

    def health(self) -> Health:
        """Return the state of the run."""
        with self._lock:
            now = None
            if self._is_live and self._last_at is not None:
                now = self._last_at + time.monotonic() - self._heard_at
            health = self._monitor.health(now)
            return replace(health, notes=(*self._contradictions.sentences, *health.notes))


def _silence(paths: Sequence[str]) -> float:
    """Return the seconds since the newest file was written; 0 where there is none yet."""
    written: list[float] = []
    for path in map(Path, paths):
        with suppress(OSError):
            files = islice(path.rglob("*"), MOST_LOOKED_AT) if path.is_dir() else [path]
            written += [file.stat().st_mtime for file in files if file.is_file()]
    return max(0.0, time.time() - max(written)) if written else 0.0
