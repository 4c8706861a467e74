"""A watched run: its sources, its monitor, its step times, and what its log contradicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock

from predictor.watch.contradictions import Contradictions
from predictor.watch.events import End, Event, Start, Step
from predictor.watch.health import Expected, Health
from predictor.watch.monitor import Monitor
from predictor.watch.ordering import by_time
from predictor.watch.series import StepSeries
from predictor.watch.source import Source

AT_ONCE = 1000  # events, between which another thread may ask for the health


class WatchedRun:
    """Reads what was written, and says how the run stands; both from any thread."""

    def __init__(self, sources: Sequence[Source], expected: Expected | None = None) -> None:
        """Take the run's sources, unread, and the prediction of its step."""
        self._sources = sources
        self._monitor = Monitor(expected)
        self._contradictions = Contradictions(expected)
        self._lock = Lock()
        self.series = StepSeries()
        self.is_ended = False

    @property
    def descriptions(self) -> list[str]:
        """Return path and format of every source."""
        return [source.description for source in self._sources]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Return what the log contradicts of the configuration, a sentence each."""
        return self._contradictions.sentences

    def poll(self) -> bool:
        """Read what was written since the last call, sources side by side in time; return whether that was anything."""
        events = by_time(source.poll() for source in self._sources)
        is_new = False
        while some := list(islice(events, AT_ONCE)):
            is_new = True
            with self._lock:
                for event in some:
                    self._take(event)
        return is_new

    def _take(self, event: Event) -> None:
        self._monitor.take(event)
        self._contradictions.take(event)
        if isinstance(event, End):
            self.is_ended = True
        elif isinstance(event, Start | Step):
            self.is_ended = False
        if isinstance(event, Step):
            self.series.take(event)

    def health(self, now: float | None = None) -> Health:
        """Return the state of the run; ``now`` in seconds since the epoch tells a stalled one."""
        with self._lock:
            health = self._monitor.health(now)
            return replace(health, notes=(*self._contradictions.sentences, *health.notes))
