"""Where every factor starts: at 1, as far from it as published times are known to miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import fmean

from predictor.core.hardware.hardware import COMPONENTS, Component
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.core.step.composition import MACHINE_SPREAD
from predictor.core.step.families import families
from predictor.evidence.calibration.linear_algebra import Matrix
from predictor.evidence.calibration.observations import Observation, half_width

# Half widths of 90 % intervals, as logs, of what no published interval tells. Launches were timed on two clusters'
# processors, an EPYC 7763 and a Grace, at 28 and 30 µs; servers' single threads lie within a factor of 1.5. Of hidden
# traffic between none and half costs time beside computing: kernels that share the GPU's bandwidth and processors.
HOST_SPREAD = log(1.5)
OVERLAP_SPREAD = log(1.5)
# Share of a family's squared error that all components have in common; nothing tells which component errs, so half is
# common and half is each component's own.
FAMILY_TOGETHER = 0.5
TIMES = frozenset(COMPONENTS) - {"overlap"}  # components that take time of their own, which a family's error lengthens


def family_spread(observations: Sequence[Observation]) -> float:
    """Return how far a software family is known to miss as a whole; a log, root mean square over the runs.

    That is the mean error of published runs of the same framework, kind and generation of GPUs; of a run without such a
    family, over all families. Which component makes the difference is not known.
    """
    known = [each.mean_log**2 for each in families() if each.framework is not None and each.gpus]
    means = [fmean(known) if each.family is None else each.family.mean_log**2 for each in observations]
    return sqrt(fmean(means))


def interval_spread(component: Component, observations: Sequence[Observation]) -> float:
    """Return half the width of the published 90 % interval of a component's time over all runs, as a log."""
    parts = [each.parts[component] for each in observations if component in each.parts]
    weight = sum(part.us for part in parts)
    return sum(half_width(part) * part.us for part in parts) / weight if weight else 0.0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of the factors' logs before any run; standard deviations, in the order of ``COMPONENTS``.

    Attributes:
        own: error of a component's published times, whatever the software.
        family: error of a software family as a whole.
    """

    own: tuple[float, ...]
    family: float

    @property
    def deviations(self) -> tuple[float, ...]:
        """Return how far every factor may lie from 1, as a log."""
        return tuple(sqrt(row[i]) for i, row in enumerate(self.covariance(systematic=True)))

    def covariance(self, *, systematic: bool) -> Matrix:
        """Return the covariance of the factors.

        Args:
            systematic: published times of a component err in one direction, on every shape of these runs; otherwise
                each run errs for itself, and a factor knows only of the family's error.
        """
        together = FAMILY_TOGETHER * self.family**2
        rows = [[together if {a, b} <= TIMES else 0.0 for b in COMPONENTS] for a in COMPONENTS]
        for i, (name, own) in enumerate(zip(COMPONENTS, self.own, strict=True)):
            rows[i][i] += (self.family**2 - together if name in TIMES else 0.0) + (own**2 if systematic else 0.0)
        return rows

    def variance_of_run(self, gradient: Sequence[float]) -> float:
        """Return the variance of the log of a run's time where every run errs for itself.

        Args:
            gradient: of that log with the logs of the factors.
        """
        return sum((slope * own) ** 2 for slope, own in zip(gradient, self.own, strict=True))


def prior_of(observations: Sequence[Observation]) -> Prior:
    """Return what is known before these runs, from published intervals and from the family of their software."""
    given = {"host": HOST_SPREAD, "overlap": OVERLAP_SPREAD}
    widths = [given.get(name, interval_spread(name, observations)) for name in COMPONENTS]
    return Prior(tuple(hypot(width, MACHINE_SPREAD) / TWO_SIDED_90 for width in widths), family_spread(observations))
