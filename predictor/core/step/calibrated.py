"""Interval of a step on a calibrated system: the residual of the measured runs, and effects that no factor explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log, sqrt

from predictor.core.costs.calibration import logs_of, with_logs
from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.variants import with_calibration
from predictor.core.hardware.hardware import COMPONENTS, Calibration

TWO_SIDED_90 = 1.645  # standard deviations of a normal distribution on either side of 90 % of it
DIFFERENCE = 0.02  # of a factor's log, whose effect stands for the derivative

Time = Callable[[PublishedSystem], float]


def log_time(time: Time, system: PublishedSystem, logs: Sequence[float]) -> float:
    """Return the log of a time on a system with factors, given by their logs in the order of ``COMPONENTS``."""
    return log(time(with_calibration(system, with_logs(system.hardware.calibration, logs))))


def log_gradient(time: Time, system: PublishedSystem, logs: Sequence[float], here: float) -> list[float]:
    """Return by how much the log of a time changes with the log of every factor.

    Args:
        time: of something on a system, in microseconds.
        system: calibrated or not; its own factors do not count.
        logs: of the factors, in the order of ``COMPONENTS``.
        here: log of the time with these factors.
    """
    gradient = []
    for position in range(len(COMPONENTS)):
        changed = [*logs[:position], logs[position] + DIFFERENCE, *logs[position + 1 :]]
        gradient.append((log_time(time, system, changed) - here) / DIFFERENCE)
    return gradient


def log_error(gradient: Sequence[float], rows: Sequence[Sequence[float]], residual: float) -> float:
    """Return half the width of a time's 90 % interval, as a log.

    Args:
        gradient: of the log of the time with the logs of the factors.
        rows: covariance of those logs.
        residual: standard deviation of what no factor explains.
    """
    together = sum(gradient[i] * rows[i][j] * gradient[j] for i in range(len(gradient)) for j in range(len(gradient)))
    return TWO_SIDED_90 * sqrt(max(together, 0.0) + residual**2)


def calibrated_interval(
    us: float, time: Time, system: PublishedSystem, calibration: Calibration
) -> tuple[float, float]:
    """Return the ends of a time's 90 % interval on a calibrated system."""
    gradient = log_gradient(time, system, logs_of(calibration), log(us))
    error = log_error(gradient, calibration.covariance, calibration.residual)
    return us * exp(-error), us * exp(error)
