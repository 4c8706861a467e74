"""Exposed communication: traffic that overlapped computation does not hide, and the slowdown of that computation.

Closed forms of small dependency graphs, to whose replay they are tested equal (``core/timeline/graph.py``).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from predictor.core.costs.cost import Cost
from predictor.core.costs.interference import NO_SLOWDOWN, Slowdown


def without_part(cost: Cost, part: Cost) -> Cost:
    """Return a cost without a part of it; never below zero."""
    return Cost(
        max(0.0, cost.us - part.us),
        max(0.0, cost.low_us - part.low_us),
        max(0.0, cost.high_us - part.high_us),
        cost.source,
    )


def shorter_cost(first: Cost, second: Cost) -> Cost:
    """Return the shorter of two costs, each end of the interval by itself."""
    return Cost(
        min(first.us, second.us),
        min(first.low_us, second.low_us),
        min(first.high_us, second.high_us),
        max(first.source, second.source),
    )


def longer_cost(first: Cost, second: Cost) -> Cost:
    """Return the longer of two costs, each end of the interval by itself."""
    return Cost(
        max(first.us, second.us),
        max(first.low_us, second.low_us),
        max(first.high_us, second.high_us),
        max(first.source, second.source),
    )


def left_over(traffic_us: float, window_us: float, buckets: float) -> float:
    """Return the exposed part of traffic in equal buckets beside a window of computation.

    Gradients: bucket k of b is full once k/b of the backward pass w has run and follows bucket k - 1, so the last one
    ends max over k of (k·w/b + (b - k + 1)·r/b) after the window's start. This is linear in k: k = 1 or k = b decides.
    Updated weights that are gathered during a forward pass mirror this in time. Without buckets (infinitely many)
    traffic starts with the window.
    """
    return max(traffic_us / buckets, traffic_us - window_us * (1.0 - 1.0 / buckets))


class OverlapResult(NamedTuple):
    """What traffic adds to the kernels that it runs beside.

    Attributes:
        exposed: the traffic that outlasts them.
        slowed: how much longer the kernels take.
    """

    exposed: Cost
    slowed: Cost

    @property
    def added(self) -> Cost:
        """Return both."""
        return self.exposed + self.slowed


def _added_us(traffic_us: float, window_us: float, buckets: float, factor: float) -> tuple[float, float]:
    """Return the exposed part of traffic, and how much longer the window takes.

    Beside traffic the window advances at 1/``factor`` of its speed, so traffic that it hides costs it
    1 - 1/``factor`` of its own time; traffic that outlasts it finds a window ``factor`` times as long.
    """
    exposed_us = left_over(traffic_us, window_us * factor, buckets)
    return exposed_us, (traffic_us - exposed_us) * (1.0 - 1.0 / factor)


def overlapped(traffic: Cost, window: Cost, slowdown: Slowdown = NO_SLOWDOWN, buckets: float = inf) -> OverlapResult:
    """Return what traffic adds to the tasks that it runs beside.

    A short window makes the upper end. The kernels' part has the slowdown's interval.
    """
    us, slowed_us = _added_us(traffic.us, window.us, buckets, slowdown.factor)
    low_us, slowed_low_us = _added_us(traffic.low_us, window.high_us, buckets, slowdown.low)
    high_us, slowed_high_us = _added_us(traffic.high_us, window.low_us, buckets, slowdown.high)
    return OverlapResult(
        Cost(us, low_us, high_us, traffic.source),
        Cost(slowed_us, min(slowed_us, slowed_low_us), max(slowed_us, slowed_high_us), traffic.source),
    )


def added_us(traffic_us: float, window_us: float, buckets: float, slowdown: Slowdown) -> float:
    """Return ``overlapped(...).added.us`` of plain numbers."""
    return sum(_added_us(traffic_us, window_us, buckets, slowdown.factor))


def exposed(traffic: Cost, window: Cost, buckets: float = inf) -> Cost:
    """Return what traffic adds to tasks that it does not slow."""
    return overlapped(traffic, window, buckets=buckets).exposed
