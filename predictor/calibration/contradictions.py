"""Runs that contradict each other, or that no factors explain: a calibration refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot
from statistics import median

from predictor.base.errors import ConfigError
from predictor.calibration.fit import LAYOUT_SPREAD, Fit
from predictor.calibration.observations import Observation

# Standard deviations beyond which a difference is no noise: 1 of 1,000 of a normal distribution.
BEYOND = 3.29
# Runs of different layouts miss by more than one normal distribution: the errors of published groups have tails twice
# as wide as their spread.
TAILS = 2.0


def _pairs(observations: Sequence[Observation]) -> list[str]:
    """Return what is wrong with runs of one configuration whose times differ by more than their noise."""
    wrong = []
    for position, run in enumerate(observations):
        for other in observations[position + 1 :]:
            apart = abs(run.log_measured - other.log_measured)
            if run.same_as == other.same_as and apart > BEYOND * hypot(run.noise, other.noise):
                wrong.append(
                    f"{run.name} and {other.name} ran one configuration in {run.measured_us / 1e6:.4g} and "
                    f"{other.measured_us / 1e6:.4g} s"
                )
    return wrong


def check_agreement(observations: Sequence[Observation], fitted: Fit) -> None:
    """Check that the runs can be those of one cluster.

    Raises:
        ConfigError: some contradict each other or all the others; the message names them.
    """
    wrong = _pairs(observations)
    if not wrong and len(observations) > 1:
        middle = median(fitted.after)
        wrong = [
            f"{run.name} takes {exp(miss):.2f} times what the factors of all runs predict"
            for run, miss in zip(observations, fitted.after, strict=True)
            if abs(miss - middle) > BEYOND * hypot(run.noise, TAILS * LAYOUT_SPREAD)
        ]
    if wrong:
        raise ConfigError(
            f"the runs contradict each other beyond their noise: {'; '.join(wrong)}. Correct or remove them, and say "
            "what differs between them in their configurations"
        )
