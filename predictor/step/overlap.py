"""Exposed communication: the part of a collective that overlapped computation does not hide.

Closed forms of small dependency graphs, to whose replay they are tested equal (``timeline/graph.py``).
"""

from __future__ import annotations

from math import inf

from predictor.costs.cost import Cost


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


def dearer(left: Cost, beside: Cost, factor: float) -> Cost:
    """Return what overlapped traffic adds to a step where a calibrated system hides less of it, or more.

    Args:
        left: what the model adds.
        beside: what it hides.
        factor: 1 for the model's own answer; each hundredth above 1 adds a hundredth of the hidden traffic.
    """
    if factor == 1.0:
        return left
    share = factor - 1.0
    ends = ((getattr(left, end) + share * getattr(beside, end)) for end in ("us", "low_us", "high_us"))
    us, low_us, high_us = (max(0.0, end) for end in ends)
    return Cost(us, low_us, high_us, left.source)


def left_over(traffic_us: float, window_us: float, buckets: float) -> float:
    """Return the exposed part of traffic in equal buckets beside a window of computation.

    Gradients: bucket k of b is full once k/b of the backward pass w has run and follows bucket k - 1, so the last one
    ends max over k of (k·w/b + (b - k + 1)·r/b) after the window's start. This is linear in k: k = 1 or k = b decides.
    Updated weights that are gathered during a forward pass mirror this in time. Without buckets (infinitely many)
    traffic starts with the window.
    """
    return max(traffic_us / buckets, traffic_us - window_us * (1.0 - 1.0 / buckets))


def exposed(traffic: Cost, window: Cost, buckets: float = inf) -> Cost:
    """Return what traffic adds to the tasks that it runs beside; a short window makes the upper end."""
    return Cost(
        left_over(traffic.us, window.us, buckets),
        left_over(traffic.low_us, window.high_us, buckets),
        left_over(traffic.high_us, window.low_us, buckets),
        traffic.source,
    )
