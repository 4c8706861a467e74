"""Robust statistics of step times, in the standard library.

Sources: Hampel 1974 (median and MAD), Tukey 1977 (midmean); Page 1954 (CUSUM), its average run length by Siegmund 1985,
eq. 2.57 with the correction for discrete time; Johnson and Bagshaw 1974 (CUSUM of autocorrelated values: the long-run
variance), here by batch means; Reynolds and Stoumbos 1999 (CUSUM of a proportion); Mann 1945, Kendall 1975 and
Theil 1950, Sen 1968 (trend).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import exp, gcd, sqrt
from statistics import median

MAD_TO_SIGMA = 1.4826  # of a normal distribution
# Standard deviation of the difference of two times that are rounded to one unit, in units: √(2 ÷ 12).
ROUNDED_DIFFERENCE = sqrt(1 / 6)
_TICK_S = 1e-6  # finer times are taken as not rounded


def spread(values: Sequence[float], centre: float | None = None) -> float:
    """Return the standard deviation estimated by the median absolute deviation.

    >>> round(spread([1.0, 2.0, 3.0, 4.0, 100.0]), 4)
    1.4826
    """
    middle = median(values) if centre is None else centre
    return MAD_TO_SIGMA * median([abs(value - middle) for value in values])


def midmean(values: Sequence[float]) -> float:
    """Return the mean of the central half (Tukey): robust, and finer than the unit of rounded times.

    >>> midmean([1.0, 2.0, 2.0, 3.0, 100.0])
    2.333333333333333
    """
    ordered = sorted(values)
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, linear between them."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def rounding(seconds: Sequence[float]) -> float:
    """Return the unit to which times are rounded, in seconds; 0 where none is seen.

    >>> rounding([0.21, 0.22, 0.21])
    0.01
    """
    ticks = [round(value / _TICK_S) for value in seconds]
    unit = gcd(*ticks) if ticks else 0
    return round(unit * _TICK_S, 9) if unit >= 10 and len(set(ticks)) > 1 else 0.0


def long_run_factor(values: Sequence[float], block: int = 8) -> float:
    """Return how much more the means of blocks vary than those of independent values would, at least 1.

    Method: batch means, by the root mean square around the midmean; the square root of the variance ratio. Of too few
    blocks: that of a correlation of neighbours of 0.4.
    """
    count = len(values) // block
    if count < 4:
        return sqrt(1.4 / 0.6)
    means = [sum(values[at * block : (at + 1) * block]) / block for at in range(count)]
    centre = midmean(values)
    within = sum((value - centre) ** 2 for value in values) / len(values)
    between = sum((mean - centre) ** 2 for mean in means) / count
    return max(1.0, sqrt(block * between / within)) if within > 0 else 1.0


def run_length(reference: float, limit: float) -> float:
    """Return the mean steps between false alarms of a one-sided CUSUM of standard normal values.

    >>> round(run_length(0.5, 4.0))
    338
    """
    width = 2 * reference * (limit + 1.166)
    return (exp(width) - width - 1) / (2 * reference**2)


@lru_cache(maxsize=1024)
def cusum_limit(reference: float, steps_between_false_alarms: float) -> float:
    """Return the limit of a one-sided CUSUM for an average run length.

    >>> round(cusum_limit(0.5, 338), 1)
    4.0
    """
    low, high = 0.0, 100.0 / max(reference, 0.1)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if run_length(reference, middle) < steps_between_false_alarms else (low, middle)
    return high


def theil_sen(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope of all pairs of points; 0 of fewer than two.

    >>> theil_sen([(0, 0), (1, 2), (2, 4), (3, 6), (4, 100)])
    2.0
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0]) for left, right in combinations(points, 2) if right[0] != left[0]
    ]
    return float(median(slopes)) if slopes else 0.0


def mann_kendall(values: Sequence[float]) -> float:
    """Return the standard normal statistic of a monotone trend, ties counted as none.

    >>> round(mann_kendall(list(range(10))), 2)
    3.94
    """
    count = len(values)
    score = sum((right > left) - (right < left) for left, right in combinations(values, 2))
    deviation = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return (score - (score > 0) + (score < 0)) / deviation if count > 2 else 0.0
