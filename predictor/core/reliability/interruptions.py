"""Interruptions of a job under given rates: how many, and what each costs, in the mean and in the second moment."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log1p

from predictor.core.reliability.checkpointing import Checkpointing
from predictor.core.reliability.reliability import Reliability

LARGEST_EXPONENT = 100.0  # of failures in one interval: e^100 intervals would be tried


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of one cost, in hours."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Interruptions of a job under one set of rates.

    Attributes:
        segments: of training from one checkpoint to the next.
        failures_each: failures while one segment is trained, in the mean; their number is geometric.
        lost: steps that one failure costs.
        stop: from one failure to the first new step, failures during restarts included.
        restarts_each: failures for each that hits a segment: those that hit its restarts, and itself.
    """

    segments: float
    failures_each: float
    lost: Moments
    stop: Moments
    restarts_each: float


def _lost(length: float, rate: float) -> Moments:
    """Return the time until a failure that comes within a length of time: an exponential, truncated."""
    exponent = rate * length
    if exponent < 1e-4:
        return Moments(length / 2.0, length * length / 12.0)
    odds = expm1(exponent)
    mean = 1.0 / rate - length / odds
    square = 2.0 / rate**2 - length * (length + 2.0 / rate) / odds
    return Moments(mean, max(square - mean * mean, 0.0))


def _stop(hours: float, variation: float, fixed: float, rate: float) -> tuple[Moments, float]:
    """Return a stop that fails itself at a rate and then begins anew, and how often it is begun.

    A stop has a fixed part and one that is gamma-distributed: φ, the chance that it is not hit, is the product of their
    Laplace transforms at the rate; begun anew until it ends, it takes (1/φ − 1) / rate in the mean.
    """
    shape = inf if variation == 0.0 else 1.0 / variation**2
    log_phi = -rate * fixed
    if shape == inf:
        log_phi -= rate * hours
    else:
        log_phi += -shape * log1p(rate * hours / shape)
    begun = exp(min(-log_phi, LARGEST_EXPONENT))
    plain = hours + fixed
    mean = plain if rate * plain < 1e-9 else (begun - 1.0) / rate
    return Moments(mean, (hours * variation * mean / plain) ** 2 if plain else 0.0), begun


def interruptions(
    rate: float, hours: float, reliability: Reliability, checkpointing: Checkpointing, stop_factor: float
) -> Interruptions | None:
    """Return the interruptions of a job; None where it makes no progress.

    The mean is Daly's: a segment is tried until it meets no failure. Source: Daly 2006,
    doi:10.1016/j.future.2004.11.016, equation 20.

    Args:
        rate: of the job's failures in an hour.
        reliability: with the central length of stops.
        checkpointing: with the time between checkpoints.
        hours: of steps, those of slow nodes included.
        stop_factor: stops over their central length.
    """
    length = checkpointing.interval_hours + checkpointing.pause_hours
    if rate * length > LARGEST_EXPONENT:
        return None
    lost = _lost(length, rate)
    # What was done while the last checkpoint was on its way into storage is lost as well.
    lost = Moments(lost.mean + checkpointing.write_hours, lost.variance)
    stop, begun = _stop(
        reliability.stop_hours * stop_factor, reliability.stop_variation, checkpointing.read_hours, rate
    )
    return Interruptions(hours / checkpointing.interval_hours, expm1(rate * length), lost, stop, begun)
