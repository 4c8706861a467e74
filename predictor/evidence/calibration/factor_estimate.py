"""Factors of a published system from measured steps: Gauss-Newton around the averaged linear models.

Times are close to linear in the factors' logs: at factors x, log(measured / published) is what a linear model with the
derivatives at x misses by, so averaging (``averaging.py``) and taking new derivatives converge in a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from predictor.core.step.calibrated import log_gradient, log_time
from predictor.evidence.calibration.averaging import KNOWN_AS, Averaged, Row, averaged, left_out
from predictor.evidence.calibration.linear_algebra import dot
from predictor.evidence.calibration.observations import Observation
from predictor.evidence.calibration.priors import Prior

MOST_STEPS = 12
CLOSE = 1e-4  # change of a factor's log that ends the search
NEW_DERIVATIVES = 3  # steps with derivatives of their own; times are close to linear in the factors


@dataclass(frozen=True, slots=True)
class FactorEstimate:
    """Factors of a published system, in the order of ``COMPONENTS``.

    Attributes:
        logs: of the factors.
        covariance: of those logs.
        gradients: per run, of the log of its predicted time.
        before: per run, log of measured over published time.
        after: per run, log of measured over calibrated time.
        left_out: per run, log of measured over the time that the runs of all other configurations calibrate.
        spread: standard deviation of what no factor explains, of a run without noise.
        systematic: probability that published times err alike in all runs, not in each for itself.
        residual: standard deviation of log(measured / predicted) of a run that took no part, its noise included.
    """

    logs: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    gradients: tuple[tuple[float, ...], ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    left_out: tuple[float, ...]
    spread: float
    systematic: float
    residual: float


def _misses(observations: Sequence[Observation], logs: Sequence[float]) -> list[float]:
    return [each.log_measured - log_time(each.time, each.system, logs) for each in observations]


def _configurations(observations: Sequence[Observation]) -> list[list[int]]:
    """Return the positions of every configuration's runs."""
    together: dict[str, list[int]] = {}
    for position, each in enumerate(observations):
        together.setdefault(each.same_as, []).append(position)
    return list(together.values())


def _row(observations: Sequence[Observation], gradients: Sequence[list[float]], targets: Sequence[float]) -> Row:
    """Return the runs of one configuration as one row: the mean by their noise, with the noise of that mean."""
    weights = [each.noise**-2 for each in observations]
    return Row(gradients[0], dot(weights, targets) / sum(weights), 1.0 / sum(weights))


def _rows(observations: Sequence[Observation], gradients: Sequence[list[float]], targets: Sequence[float]) -> list[Row]:
    return [
        _row([observations[i] for i in runs], [gradients[i] for i in runs], [targets[i] for i in runs])
        for runs in _configurations(observations)
    ]


class _Found(NamedTuple):
    """Where the search ended: averaged factors, the rows that made them, and derivatives and misses of every run."""

    averaged: Averaged
    rows: list[Row]
    gradients: list[list[float]]
    misses: list[float]


def _searched(observations: Sequence[Observation], prior: Prior, before: Sequence[float]) -> _Found:
    """Return where Gauss-Newton ends."""
    logs, misses = [0.0] * len(prior.own), list(before)
    gradients: list[list[float]] = []
    for step in range(MOST_STEPS):
        if step < NEW_DERIVATIVES:
            gradients = [
                log_gradient(each.time, each.system, logs, each.log_measured - miss)
                for each, miss in zip(observations, misses, strict=True)
            ]
        targets = [dot(row, logs) + miss for row, miss in zip(gradients, misses, strict=True)]
        rows = _rows(observations, gradients, targets)
        found = averaged(rows, prior)
        change = max(abs(new - old) for new, old in zip(found.logs, logs, strict=True))
        logs, misses = found.logs, _misses(observations, found.logs)
        if change < CLOSE:
            break
    return _Found(found, rows, gradients, misses)


def _left_out_misses(observations: Sequence[Observation], found: _Found) -> list[float]:
    """Return every run's miss with the factors of all other configurations."""
    misses = [0.0] * len(observations)
    others = left_out(found.rows, found.averaged.posteriors)
    for runs, logs in zip(_configurations(observations), others, strict=True):
        for i in runs:
            misses[i] = observations[i].log_measured - log_time(observations[i].time, observations[i].system, logs)
    return misses


def estimate_factors(observations: Sequence[Observation], prior: Prior) -> FactorEstimate:
    """Return the factors that are expected after measured steps.

    Args:
        observations: at least one.
        prior: what is known of the factors beforehand.
    """
    before = _misses(observations, [0.0] * len(prior.own))
    found = _searched(observations, prior, before)
    others = _left_out_misses(observations, found)
    known = fmean(each.spread**2 + each.noise**2 for each in observations)
    unseen = (KNOWN_AS * known + sum(miss**2 for miss in others)) / (KNOWN_AS + len(others))
    return FactorEstimate(
        logs=tuple(found.averaged.logs),
        covariance=tuple(map(tuple, found.averaged.covariance)),
        gradients=tuple(map(tuple, found.gradients)),
        before=tuple(before),
        after=tuple(found.misses),
        left_out=tuple(others),
        spread=found.averaged.spread,
        systematic=found.averaged.systematic,
        residual=sqrt(unseen),
    )
