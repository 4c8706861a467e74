"""Monitor: events of a run in, ``Health`` out, in bounded memory."""

from __future__ import annotations

from predictor.watch.events import Event, Step
from predictor.watch.health import Expected, Health, State


class Monitor:
    """Takes the events of a run in order and says how it stands."""

    def __init__(self, expected: Expected | None = None) -> None:
        """Start without a step seen."""
        self._expected = expected
        self._steps = 0
        self._first: int | None = None
        self._last: int | None = None

    def take(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Step) and event.rank is None:
            self._steps += event.steps
            self._first = event.number if self._first is None else self._first
            self._last = event.number

    def health(self, now: float | None = None) -> Health:
        """Return the state of the run; ``now`` in seconds since the epoch tells a stalled run."""
        state = State.WAITING if self._last is None else State.HEALTHY
        return Health(state, self._expected, first_step=self._first, last_step=self._last, steps=self._steps)
