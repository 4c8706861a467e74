"""Calibrate 90 % intervals on held-out errors (split conformal prediction).

Source: Lei et al. 2018, arXiv:1604.04173; the quantile's level is corrected for the number of errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from predictor.core.costs.regressors import Interval

Vector = NDArray[np.float64]
COVERAGE = 0.90
# Outside the hull the calibration extrapolates less far than the answer, so the quantile is larger.
OUTSIDE_COVERAGE = 0.95
SMALLEST_LOG_WIDTH = 1e-4
SMALLEST_DISTANCE = 0.05


def upper_quantile(values: Vector, level: float) -> float:
    """Return the conformal quantile: a new value is below it with probability ``level``."""
    rank = min(ceil((len(values) + 1) * level), len(values))
    return float(np.sort(values)[rank - 1])


def calibrate(inside: Vector, outside: Sequence[tuple[Vector, Vector]]) -> Interval:
    """Return the interval of log(measured / predicted).

    Args:
        inside: signed log errors on held-out shapes.
        outside: per extrapolation split, signed log errors and log distances from the hull of what was fitted.
    """
    tail = (1.0 - COVERAGE) / 2.0
    high = max(upper_quantile(inside, 1.0 - tail), SMALLEST_LOG_WIDTH)
    low = min(-upper_quantile(-inside, 1.0 - tail), -SMALLEST_LOG_WIDTH)
    beyond = max((upper_quantile(np.abs(error), OUTSIDE_COVERAGE) for error, _ in outside if len(error)), default=0.0)
    distances = np.concatenate([distance[distance > 0.0] for _, distance in outside] or [np.empty(0)])
    typical = float(np.median(distances)) if len(distances) else SMALLEST_DISTANCE
    return Interval(
        inside=(round(low, 5), round(high, 5)),
        outside=round(max(beyond, high, -low), 5),
        outside_distance=round(max(typical, SMALLEST_DISTANCE), 5),
    )


def covered(interval: Interval, log_error: Vector, distance: Vector) -> NDArray[np.bool_]:
    """Return which errors lie in the interval at their distance from the hull."""
    low, high = np.array([interval.bounds(d) for d in distance.tolist()]).reshape(-1, 2).T
    return np.asarray((log_error >= low) & (log_error <= high))
