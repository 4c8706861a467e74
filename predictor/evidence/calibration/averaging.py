"""Posterior of the factors: Bayesian model averaging over causes of error in published times.

Three runs cannot tell whether a cluster is slower than published or each run errs for itself. So both are assumed in
turn, with every size of the spread that no factor explains:

- systematic: a component's published times err alike in all runs, and its factor corrects them;
- each for itself: a component's published times err anew in every run, and only what the software has in common moves.

Under each hypothesis logs of measured over predicted time are linear in the factors' logs and normal, so a run updates
them in closed form (Bishop 2006, Pattern Recognition and Machine Learning, section 3.3), and the density of each run
given the ones before it multiplies to the evidence (section 3.4). Factors are averaged with the evidence as weight
(Hoeting et al. 1999, Bayesian model averaging, Statistical Science 14). Runs that are alike weigh for systematic errors
and a small spread, and move factors almost by what they miss; runs that are unlike hardly move them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import NamedTuple

from predictor.evidence.calibration.linear_algebra import Matrix, dot, product
from predictor.evidence.calibration.observations import LAYOUT_SPREAD
from predictor.evidence.calibration.priors import Prior

KNOWN_AS = 4.0  # runs that a known spread counts for, against what the runs themselves show
# Spreads that are tried, over the known one: a scaled inverse chi-squared prior has 1 of 1,000 beyond either end.
SPREADS = tuple(0.45 * 1.25**step for step in range(14))


class Row(NamedTuple):
    """A configuration's time, linear in the factors' logs.

    Attributes:
        gradient: of the log of its predicted time.
        target: log of measured over published time.
        variance: of that log, from the noise of its runs.
    """

    gradient: Sequence[float]
    target: float
    variance: float


class Posterior(NamedTuple):
    """Factors under one hypothesis.

    Attributes:
        systematic: what the hypothesis assumes of published times.
        spread: the standard deviation that it assumes beyond factors and noise.
        weight: log of its prior times its evidence, up to a constant.
        logs: mean of the factors' logs.
        covariance: of those logs.
        variances: of the rows' targets around the factors.
    """

    systematic: bool
    spread: float
    weight: float
    logs: list[float]
    covariance: Matrix
    variances: list[float]


@dataclass(frozen=True, slots=True)
class Averaged:
    """Factors over all hypotheses.

    Attributes:
        logs: mean of the factors' logs.
        covariance: of those logs.
        posteriors: factors under every hypothesis.
        spread: standard deviation of what no factor explains, root mean square.
        systematic: probability that published times err alike in all runs.
    """

    logs: list[float]
    covariance: Matrix
    posteriors: list[Posterior]
    spread: float
    systematic: float


def _posterior(rows: Sequence[Row], prior: Prior, *, systematic: bool, times: float) -> Posterior:
    """Return the factors under one hypothesis, updated row by row."""
    spread = times * LAYOUT_SPREAD
    weight = -KNOWN_AS * (log(times) + 0.5 / times**2)
    covariance = prior.covariance(systematic=systematic)
    logs = [0.0] * len(covariance)
    variances = []
    for row in rows:
        own = 0.0 if systematic else prior.variance_of_run(row.gradient)
        variances.append(row.variance + spread**2 + own)
        along = product(covariance, row.gradient)
        expected = dot(row.gradient, along) + variances[-1]
        miss = row.target - dot(row.gradient, logs)
        weight -= 0.5 * (log(expected) + miss**2 / expected)
        logs = [value + gain * miss / expected for value, gain in zip(logs, along, strict=True)]
        covariance = [
            [value - a * b / expected for value, b in zip(line, along, strict=True)]
            for line, a in zip(covariance, along, strict=True)
        ]
    return Posterior(systematic, spread, weight, logs, covariance, variances)


def _shares(weights: Sequence[float]) -> list[float]:
    """Return weights that are given as logs, over their sum."""
    most = max(weights)
    shares = [exp(weight - most) for weight in weights]
    return [share / sum(shares) for share in shares]


def _mean(vectors: Sequence[Sequence[float]], shares: Sequence[float]) -> list[float]:
    return [dot(values, shares) for values in zip(*vectors, strict=True)]


def _without(row: Row, variance: float, posterior: Posterior) -> tuple[list[float], float]:
    """Return a hypothesis's factors and weight without one of its rows, in closed form.

    With r = target − gradient · logs and h = gradient · covariance · gradient, the row adds covariance · gradient ·
    r ÷ (variance − h) to the logs, and lies r · variance ÷ (variance − h) from what the others expect of it, whose
    variance is variance² ÷ (variance − h).
    """
    along = product(posterior.covariance, row.gradient)
    left = variance - dot(row.gradient, along)
    miss = row.target - dot(row.gradient, posterior.logs)
    logs = [value - each * miss / left for value, each in zip(posterior.logs, along, strict=True)]
    return logs, posterior.weight + 0.5 * (log(variance**2 / left) + miss**2 / left)


def averaged(rows: Sequence[Row], prior: Prior) -> Averaged:
    """Return the factors over all hypotheses, each with the weight of its evidence.

    Args:
        rows: one per configuration; runs of one configuration share its error and are one row.
        prior: what is known of the factors beforehand.
    """
    posteriors = [
        _posterior(rows, prior, systematic=systematic, times=times) for systematic in (True, False) for times in SPREADS
    ]
    shares = _shares([each.weight for each in posteriors])
    logs = _mean([each.logs for each in posteriors], shares)
    apart = [[value - mean for value, mean in zip(each.logs, logs, strict=True)] for each in posteriors]
    size = range(len(logs))
    covariance = [
        [
            sum(
                share * (each.covariance[i][j] + off[i] * off[j])
                for share, each, off in zip(shares, posteriors, apart, strict=True)
            )
            for j in size
        ]
        for i in size
    ]
    return Averaged(
        logs=logs,
        covariance=covariance,
        posteriors=posteriors,
        spread=sqrt(dot(shares, [each.spread**2 for each in posteriors])),
        systematic=sum(share for share, each in zip(shares, posteriors, strict=True) if each.systematic),
    )


def left_out(rows: Sequence[Row], posteriors: Sequence[Posterior]) -> Iterator[list[float]]:
    """Yield per row the logs of the factors that all other rows make, hypotheses weighed anew.

    Args:
        rows: with which factors were averaged.
        posteriors: that they made.
    """
    for i, row in enumerate(rows):
        others = [_without(row, each.variances[i], each) for each in posteriors]
        yield _mean([logs for logs, _ in others], _shares([weight for _, weight in others]))
