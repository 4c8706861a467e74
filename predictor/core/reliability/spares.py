"""Spare nodes of a job, whose failed nodes are out for a time: enough, all in use, or too few."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, sqrt

# Standard deviation of the log of one cluster's own rate of failures from month to month, beyond that of counting.
# Source: InfiniteHBD's trace (arXiv:2502.03885, Apache-2.0, half of its servers), 12 to 54 faults in 30 days: 0.55 in
# one month, 0.47 in two.
MONTHLY_SCATTER = 0.5
MANY_OUT = 100.0  # a Poisson number of more is taken as its mean


def erlang_b(servers: int, load: float) -> float:
    """Return the probability that all servers are busy, where arrivals that find them busy are lost.

    Erlang's loss formula; it holds for any distribution of the service time.

    >>> round(erlang_b(1, 0.25), 3)
    0.2
    """
    if servers > load + 12.0 * sqrt(load) + 12.0:
        return 0.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked


def missing_nodes(spares: int, load: float) -> float:
    """Return the mean number of nodes that are out beyond the spares; the number out is Poisson-distributed."""
    if spares > load + 12.0 * sqrt(load) + 12.0:
        return 0.0
    if load > MANY_OUT:
        return max(load - spares, 0.0)
    term, below, short = exp(-load), 0.0, 0.0
    for number in range(spares):
        below += term
        short += (spares - number) * term
        term *= load / (number + 1)
    return max(load - spares + short, 0.0)


def enough_spares(loads: Sequence[float], most: int) -> int:
    """Return the spares that suffice 99 % of the time, over months and over clusters.

    The number of nodes that are out is Poisson-distributed in a month and its mean differs from month to month: gamma
    over Poisson, a negative binomial distribution. Source of the rule: ByteRobust, arXiv:2509.16293, section 6.2,
    standby machines at the 99th percentile.

    Args:
        loads: nodes out in the mean, of equally likely clusters.
        most: spares that there can be.

    >>> enough_spares([1.0], 100), enough_spares([4.0], 100), enough_spares([1.0, 4.0], 100), enough_spares([4.0], 3)
    (5, 13, 12, 3)
    """
    shape = 1.0 / expm1(MONTHLY_SCATTER**2)
    terms = [(shape / (shape + load)) ** shape for load in loads]
    below, spares = sum(terms), 0
    while below < 0.99 * len(loads) and spares < most:
        spares += 1
        terms = [
            term * (spares + shape - 1.0) / spares * load / (shape + load)
            for term, load in zip(terms, loads, strict=True)
        ]
        below += sum(terms)
    return spares
