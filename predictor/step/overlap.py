"""Exposed communication: the part of a collective that overlapped computation does not hide."""

from __future__ import annotations

from predictor.costs.cost import Cost


def without_part(cost: Cost, part: Cost) -> Cost:
    """Return a cost without a part of it; never below nothing."""
    return Cost(
        max(0.0, cost.us - part.us),
        max(0.0, cost.low_us - part.low_us),
        max(0.0, cost.high_us - part.high_us),
        cost.source,
    )


def shorter_cost(one: Cost, other: Cost) -> Cost:
    """Return the shorter of two costs, end by end."""
    return Cost(
        min(one.us, other.us),
        min(one.low_us, other.low_us),
        min(one.high_us, other.high_us),
        max(one.source, other.source),
    )


def exposed(traffic: Cost, window: Cost) -> Cost:
    """Return what traffic adds to a pass when it runs beside tasks that take ``window``."""
    return Cost(
        max(0.0, traffic.us - window.us),
        max(0.0, traffic.low_us - window.high_us),
        max(0.0, traffic.high_us - window.low_us),
        traffic.source,
    )


def left_over(traffic_us: float, window_us: float, buckets: int) -> float:
    """Return what a gradient reduction takes longer than the backward pass that it runs beside.

    The first bucket is full after 1/buckets of the pass, and the last one can only follow it. The same holds the other
    way round for updated weights that are gathered during a forward pass.
    """
    return max(traffic_us / buckets, traffic_us - window_us * (1.0 - 1.0 / buckets))


def exposed_reduction(reduction: Cost, window: Cost, buckets: int) -> Cost:
    """Return what a gradient reduction adds to the step when it overlaps a backward pass."""
    return Cost(
        left_over(reduction.us, window.us, buckets),
        left_over(reduction.low_us, window.high_us, buckets),
        left_over(reduction.high_us, window.low_us, buckets),
        reduction.source,
    )
