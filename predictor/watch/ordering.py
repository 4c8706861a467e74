"""Events of several files in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from math import inf

from predictor.watch.events import Event


def _dated(events: Iterable[Event]) -> Iterator[tuple[float, Event]]:
    """Return the events of a file, each with the latest time that the file has stated so far."""
    latest = -inf
    for event in events:
        if event.at is not None and event.at > latest:
            latest = event.at
        yield latest, event


def by_time(files: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """Return the events of several files side by side; each keeps its own order, and one without times comes first.

    >>> from predictor.watch.events import Step
    >>> [step.number for step in by_time([[Step(1, at=5.0), Step(2)], [Step(3, at=4.0), Step(4, at=9.0)], [Step(5)]])]
    [5, 3, 1, 2, 4]
    """
    return (event for _, event in merge(*map(_dated, files), key=lambda dated: dated[0]))
