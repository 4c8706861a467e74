"""Runs that contradict each other: a calibration refuses to be moved by them.

Two runs of one cluster miss their published times by different factors, since other components dominate them and their
layouts differ. They contradict each other where the difference exceeds what the factors' priors and the noise of the
runs explain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, sqrt
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.evidence.calibration.factor_estimate import FactorEstimate
from predictor.evidence.calibration.observations import LAYOUT_SPREAD, Observation

# Standard deviations beyond which a difference is no noise: 1 of 1,000 of a normal distribution.
BEYOND = 3.29
# How much wider than its spread the misses of whole steps between layouts are: of published groups of one framework
# and GPU the tails are twice those of a normal distribution.
TAILS = 2.0
MOST_NAMED = 3


class _Pair(NamedTuple):
    """Two runs, and how much longer the second took than the first beside their published times."""

    first: int
    second: int
    times: float


def _contradicting(observations: Sequence[Observation], fitted: FactorEstimate, priors: Sequence[float]) -> list[_Pair]:
    pairs = []
    for i, run in enumerate(observations):
        for j in range(i + 1, len(observations)):
            other = observations[j]
            apart = fitted.before[j] - fitted.before[i]
            variance = run.noise**2 + other.noise**2
            if run.same_as != other.same_as:
                differences = zip(fitted.gradients[i], fitted.gradients[j], priors, strict=True)
                variance += 2.0 * (TAILS * LAYOUT_SPREAD) ** 2
                variance += sum(((a - b) * prior) ** 2 for a, b, prior in differences)
            if abs(apart) > BEYOND * sqrt(variance):
                pairs.append(_Pair(i, j, exp(apart)))
    return pairs


def _told(observations: Sequence[Observation], pair: _Pair) -> str:
    first, second = (observations[i] for i in (pair.first, pair.second))
    seconds = f"{first.measured_us / 1e6:.4g} and {second.measured_us / 1e6:.4g} s"
    if first.same_as == second.same_as:
        return f"{first.name} and {second.name} ran one configuration in {seconds}"
    slow, fast, times = (second, first, pair.times) if pair.times > 1.0 else (first, second, 1.0 / pair.times)
    return f"{slow.name} took {times:.2f} times as long beside {fast.name} as published ({seconds})"


def check_agreement(observations: Sequence[Observation], fitted: FactorEstimate, priors: Sequence[float]) -> None:
    """Check that the runs can be those of one cluster.

    Args:
        observations: measured steps.
        fitted: factors that they move.
        priors: standard deviations of the factors' logs.

    Raises:
        ConfigError: some contradict each other; the message names them.
    """
    pairs = _contradicting(observations, fitted, priors)
    if not pairs:
        return
    often, count = Counter(i for pair in pairs for i in (pair.first, pair.second)).most_common(1)[0]
    if count == len(pairs) > 1:
        subject = f"{observations[often].name} contradicts {count} other runs"
        pairs = [pair for pair in pairs if often in (pair.first, pair.second)][:1]
    else:
        subject = "runs contradict each other"
    named = "; ".join(_told(observations, pair) for pair in pairs[:MOST_NAMED])
    raise ConfigError(
        f"{subject} beyond noise and known spread: {named}. Correct or remove what is wrong, or say what differs in "
        "the configurations"
    )
