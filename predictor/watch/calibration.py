"""Expected step after the run's first healthy steps: conjugate normal update in log space.

Prior: the prediction with its 90 % interval. Evidence: the median of the run's own steps, whose error is what repeated
runs of one configuration differ by, and its sampling error. Steps above the prediction's interval are no evidence
of what the run should take: then nothing is calibrated, and the whole run is slower than predicted.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, log1p

from predictor.watch.detector import MATERIAL
from predictor.watch.health import Expected

_Z90 = 1.6449  # of a central 90 % interval


def is_within(expected: Expected, seconds: float) -> bool:
    """Whether a step is not slower than the prediction's interval."""
    return seconds <= expected.high_s


def calibrated(expected: Expected, seconds: float, sigma: float, steps: int) -> Expected:
    """Return the expected step, updated by the median of the run's first usual steps.

    >>> prior = Expected(seconds=1.0, low_s=0.8, high_s=1.25)
    >>> 1.09 < calibrated(prior, 1.1, 0.01, 50).calibrated_s < 1.1
    True
    """
    if not is_within(expected, seconds):
        return replace(expected, calibrated_s=None, calibrated_low_s=None, calibrated_high_s=None)
    prior = max(log(expected.high_s / expected.low_s) / (2 * _Z90), 1e-6)
    own = log1p(MATERIAL) ** 2 + sigma**2 / max(steps, 1)
    weight = prior**2 / (prior**2 + own)
    centre = (1 - weight) * log(expected.seconds) + weight * log(seconds)
    deviation = (weight * own) ** 0.5
    return replace(
        expected,
        calibrated_s=exp(centre),
        calibrated_low_s=exp(centre - _Z90 * deviation),
        calibrated_high_s=exp(centre + _Z90 * deviation),
    )


def needed_parts(expected: Expected, seconds: float) -> tuple[str, ...]:
    """Return a sentence for each predicted part that alone could hold the excess, the least change first."""
    excess = seconds - expected.seconds
    factors = sorted((1 + excess / part, name) for name, part in expected.parts.items() if part > 0)
    return tuple(
        f"Predicted {name.replace('_', ' ')} would have to take {factor:.2f} times as long to explain it alone"
        for factor, name in factors[:3]
    )
