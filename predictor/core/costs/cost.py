"""A time with its 90 % interval and source. Costs add up."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class Source(IntEnum):
    """How a time was obtained, the most reliable first; a sum has the least reliable source of its parts."""

    MEASURED = 0
    INTERPOLATED = 1
    EXTRAPOLATED = 2
    ANALYTIC = 3

    @property
    def label(self) -> str:
        """Return the lower-case name used in reports and JSON."""
        return self.name.lower()


class Cost(NamedTuple):
    """A duration in microseconds.

    Attributes:
        us: the point estimate.
        low_us: lower end of the 90 % interval.
        high_us: upper end of the 90 % interval.
        source: the weakest source of any part.
    """

    us: float
    low_us: float
    high_us: float
    source: Source

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        """Add two costs; interval ends add too, as if their errors were fully correlated (the cautious choice)."""
        return Cost(
            self.us + other.us,
            self.low_us + other.low_us,
            self.high_us + other.high_us,
            self.source if self.source >= other.source else other.source,
        )

    def __mul__(self, times: float) -> Cost:  # type: ignore[override]
        """Repeat a cost; the error of a kernel is the same each time, so the interval scales."""
        return Cost(self.us * times, self.low_us * times, self.high_us * times, self.source)


ZERO = Cost(0.0, 0.0, 0.0, Source.MEASURED)


def total(costs: Iterable[Cost]) -> Cost:
    """Add up any number of costs; the sum of none is ZERO."""
    us = low_us = high_us = 0.0
    weakest = Source.MEASURED
    for us_of_one, low, high, source in costs:
        us += us_of_one
        low_us += low
        high_us += high
        if source > weakest:
            weakest = source
    return Cost(us, low_us, high_us, weakest)
