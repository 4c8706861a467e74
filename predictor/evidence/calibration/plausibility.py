"""Measured times that are no step of the system: a calibration refuses to be moved by them."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log

from predictor.core.base.errors import ConfigError
from predictor.core.hardware.hardware import COMPONENTS
from predictor.evidence.calibration.observations import Observation

# Standard deviations of what is known beforehand: 1 of 16,000 of a normal distribution lies farther.
IMPLAUSIBLE = 4.0
# The slowest family of published runs takes about twice its predicted time; a component alone may err more.
MOST_TIMES = 5.0
HOPELESS = log(100.0)  # of measured over published time: another unit, which no other run needs to contradict
MOST_NAMED = 3


def expected_deviation(observation: Observation, priors: Sequence[float]) -> float:
    """Return the standard deviation of log(measured / published) of a run before any run is known.

    Factors err together, as a software family does; each counts by its component's share of the published time.
    """
    known = dict(zip(COMPONENTS, priors, strict=True))
    whole = sum(part.us for part in observation.parts.values())
    if whole <= 0.0:
        return hypot(max(priors), observation.spread, observation.noise)
    factors = sum(known[component] * part.us for component, part in observation.parts.items()) / whole
    return hypot(factors, observation.spread, observation.noise)


def _told(observation: Observation, miss: float) -> str:
    times = f"{exp(miss):.3g}" if abs(miss) < log(1e9) else "more than 1e9" if miss > 0.0 else "less than 1e-9"
    published = exp(observation.log_published) / 1e6
    return f"{observation.name} took {observation.measured_us / 1e6:.4g} s, {times} times the published {published:.4g}"


def _likely_reason(miss: float) -> str:
    """Return what such a log of measured over published time looks like."""
    if log(100.0) < miss < log(1e4):
        return "seconds look like milliseconds, or the system is another one"
    if log(1e5) < miss < log(1e7):
        return "seconds look like microseconds, or the system is another one"
    return "seconds are of something else than one step, or the system is another one"


def check_times(observations: Sequence[Observation], priors: Sequence[float], beyond: float = 0.0) -> None:
    """Check that measured times can be those of the published system at all.

    Args:
        observations: measured steps.
        priors: standard deviations of the factors' logs, in the order of ``COMPONENTS``.
        beyond: smallest absolute log of measured over published time that is refused.

    Raises:
        ConfigError: some cannot; the message names them.
    """
    far = []
    for each in observations:
        miss = each.log_measured - each.log_published
        if abs(miss) > max(beyond, IMPLAUSIBLE * expected_deviation(each, priors)):
            far.append((each, miss))
    if not far:
        return
    named = "; ".join(_told(each, miss) for each, miss in far[:MOST_NAMED])
    more = f"; {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    reason = _likely_reason(sorted(miss for _, miss in far)[len(far) // 2])
    raise ConfigError(f"{named}{more}: {reason}. Correct seconds or --system; nothing was written")


def check_factors(logs: Sequence[float]) -> None:
    """Check that no component takes a time that no machine explains.

    Args:
        logs: of the fitted factors, in the order of ``COMPONENTS``.

    Raises:
        ConfigError: a factor or its inverse exceeds ``MOST_TIMES``.
    """
    name, farthest = max(zip(COMPONENTS, logs, strict=True), key=lambda each: abs(each[1]))
    if abs(farthest) > log(MOST_TIMES):
        raise ConfigError(
            f"{name} would take {exp(farthest):.3g} times as long as published, beyond a factor of {MOST_TIMES:g}: "
            "configurations say something else than what ran, or the system is another one; nothing was written"
        )
