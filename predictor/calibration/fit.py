"""Maximum a posteriori factors: Gauss-Newton on log(measured / predicted), with log-normal priors.

With r the logs of measured over predicted times at factors x (logs), J the derivatives of the predicted logs, W the
inverse variances of the runs and P those of the priors, a step solves (JᵀWJ + P) d = JᵀW r − P x. The inverse of that
matrix at the end is the covariance of the factors (Laplace's approximation). Bishop 2006, Pattern Recognition and
Machine Learning, sections 3.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean

from predictor.calibration.linear_algebra import Matrix, dot, inverse, product
from predictor.calibration.observations import LAYOUT_SPREAD, Observation
from predictor.step.calibrated import log_gradient, log_time

KNOWN_AS = 4.0  # runs that a known spread counts for, against the spread of the runs themselves
MOST_STEPS = 12
CLOSE = 1e-4  # change of a factor's log that ends the search
NEW_DERIVATIVES = 3  # steps with derivatives of their own; times are close to linear in the factors


@dataclass(frozen=True, slots=True)
class Fit:
    """Factors of a published system, in the order of ``COMPONENTS``.

    Attributes:
        logs: of the factors.
        covariance: of those logs.
        gradients: per run, of the log of its predicted time.
        before: per run, log of measured over published time.
        after: per run, log of measured over calibrated time.
        left_out: per run, log of measured over the time that all other runs calibrate.
        spread: standard deviation of what no factor explains, of a run without noise.
        residual: standard deviation of log(measured / predicted) of a run that took no part, its noise included.
    """

    logs: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    gradients: tuple[tuple[float, ...], ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    left_out: tuple[float, ...]
    spread: float
    residual: float


def _information(gradients: Sequence[Sequence[float]], weights: Sequence[float], priors: Sequence[float]) -> Matrix:
    size = len(priors)
    return [
        [
            sum(weight * row[i] * row[j] for row, weight in zip(gradients, weights, strict=True))
            + (priors[i] ** -2 if i == j else 0.0)
            for j in range(size)
        ]
        for i in range(size)
    ]


def _solved(
    gradients: Sequence[Sequence[float]],
    targets: Sequence[float],
    weights: Sequence[float],
    priors: Sequence[float],
) -> tuple[list[float], Matrix]:
    """Return the factors' logs x that fit ``gradients · x = targets``, and their covariance."""
    covariance = inverse(_information(gradients, weights, priors))
    drive = [
        sum(w * row[i] * t for row, w, t in zip(gradients, weights, targets, strict=True)) for i in range(len(priors))
    ]
    return product(covariance, drive), covariance


def _misses(observations: Sequence[Observation], logs: Sequence[float]) -> list[float]:
    return [each.log_measured - log_time(each.time, each.system, logs) for each in observations]


def _searched(
    observations: Sequence[Observation], priors: Sequence[float], weights: Sequence[float], logs: list[float]
) -> tuple[list[float], Matrix, list[list[float]], list[float]]:
    """Return factors, covariance, derivatives and misses where Gauss-Newton ends."""
    misses = _misses(observations, logs)
    gradients: list[list[float]] = []
    covariance: Matrix = []
    for step in range(MOST_STEPS):
        if step < NEW_DERIVATIVES:
            gradients = [
                log_gradient(each.time, each.system, logs, each.log_measured - miss)
                for each, miss in zip(observations, misses, strict=True)
            ]
        targets = [dot(row, logs) + miss for row, miss in zip(gradients, misses, strict=True)]
        solved, covariance = _solved(gradients, targets, weights, priors)
        change = max(abs(new - old) for new, old in zip(solved, logs, strict=True))
        logs = solved
        misses = _misses(observations, logs)
        if change < CLOSE:
            break
    return logs, covariance, gradients, misses


def _without(
    observations: Sequence[Observation],
    priors: Sequence[float],
    weights: Sequence[float],
    gradients: Sequence[Sequence[float]],
    logs: Sequence[float],
    misses: Sequence[float],
) -> list[float]:
    """Return every run's miss with the factors of all other runs, whose times are linear around the common factors."""
    targets = [dot(row, logs) + miss for row, miss in zip(gradients, misses, strict=True)]
    left_out = []
    for position, each in enumerate(observations):
        silent = [0.0 if other == position else weight for other, weight in enumerate(weights)]
        others, _ = _solved(gradients, targets, silent, priors)
        left_out.append(each.log_measured - log_time(each.time, each.system, others))
    return left_out


def _spread(misses: Sequence[float], noises: Sequence[float]) -> float:
    """Return the spread beyond the runs' noise: what is known of layouts, and what these runs show."""
    shown = sum(max(0.0, miss**2 - noise**2) for miss, noise in zip(misses, noises, strict=True))
    return sqrt((KNOWN_AS * LAYOUT_SPREAD**2 + shown) / (KNOWN_AS + len(misses)))


def fit(observations: Sequence[Observation], priors: Sequence[float]) -> Fit:
    """Return the factors that measured steps and priors make most likely.

    Args:
        observations: at least one.
        priors: standard deviations of the factors' logs, in the order of ``COMPONENTS``.
    """
    noises = [each.noise for each in observations]
    spread = LAYOUT_SPREAD
    logs = [0.0] * len(priors)
    before = _misses(observations, logs)
    for _ in range(2):  # the spread is that of the first fit's misses; what widens it weighs the runs less
        weights = [hypot(noise, spread) ** -2 for noise in noises]
        logs, covariance, gradients, after = _searched(observations, priors, weights, logs)
        spread = _spread(after, noises)
    left_out = _without(observations, priors, weights, gradients, logs, after)
    known = fmean(each.spread**2 + each.noise**2 for each in observations)
    unseen = (KNOWN_AS * known + sum(miss**2 for miss in left_out)) / (KNOWN_AS + len(left_out))
    return Fit(
        logs=tuple(logs),
        covariance=tuple(map(tuple, covariance)),
        gradients=tuple(map(tuple, gradients)),
        before=tuple(before),
        after=tuple(after),
        left_out=tuple(left_out),
        spread=spread,
        residual=sqrt(unseen),
    )
