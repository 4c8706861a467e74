"""Prior of every factor: centred at 1, as wide as the known error of published times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, log, sqrt
from statistics import fmean

from predictor.core.hardware.hardware import COMPONENTS, Component
from predictor.core.step.calibrated import TWO_SIDED_90
from predictor.core.step.composition import MACHINE_SPREAD
from predictor.evidence.calibration.linear_algebra import Matrix
from predictor.evidence.calibration.observations import Observation, half_width

# Half widths of 90 % intervals, as logs, of what no published interval tells. Launches were timed on two clusters'
# processors, an EPYC 7763 and a Grace, at 28 and 30 µs; those of other nodes and software take up to three times as
# long (docs/adr/0005-host.md). Of hidden traffic between none and half costs time beside computing: kernels that share
# the GPU's bandwidth and processors.
HOST_SPREAD = log(3.0)
OVERLAP_SPREAD = log(1.5)
# Share of the squared error of a cluster and its software that all components have in common; nothing tells which
# component errs, so half is common and half is each component's own.
TOGETHER = 0.5
TIMES = frozenset(COMPONENTS) - {"overlap"}  # components that take time of their own, which such an error lengthens


def whole_spread(observations: Sequence[Observation]) -> float:
    """Return how far the modelled time of such runs is known to miss as a whole; a log, root mean square over the runs.

    That is what published runs of their kind took beyond it, and how far their sources lie apart. Which component makes
    the difference is not known.
    """
    return sqrt(fmean(each.expected**2 + each.systematic**2 for each in observations))


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
        whole: error of a cluster and its software as a whole.
    """

    own: tuple[float, ...]
    whole: float

    @property
    def deviations(self) -> tuple[float, ...]:
        """Return how far every factor may lie from 1, as a log."""
        return tuple(sqrt(row[i]) for i, row in enumerate(self.covariance(systematic=True)))

    def covariance(self, *, systematic: bool) -> Matrix:
        """Return the covariance of the factors.

        Args:
            systematic: published times of a component err in one direction, on every shape of these runs; otherwise
                each run errs for itself, and a factor knows only of the error as a whole.
        """
        together = TOGETHER * self.whole**2
        rows = [[together if {a, b} <= TIMES else 0.0 for b in COMPONENTS] for a in COMPONENTS]
        for i, (name, own) in enumerate(zip(COMPONENTS, self.own, strict=True)):
            rows[i][i] += (self.whole**2 - together if name in TIMES else 0.0) + (own**2 if systematic else 0.0)
        return rows

    def variance_of_run(self, gradient: Sequence[float]) -> float:
        """Return the variance of the log of a run's time where every run errs for itself.

        Args:
            gradient: of that log with the logs of the factors.
        """
        return sum((slope * own) ** 2 for slope, own in zip(gradient, self.own, strict=True))


def prior_of(observations: Sequence[Observation]) -> Prior:
    """Return what is known before these runs, from published intervals and runs of their kind."""
    given = {"host": HOST_SPREAD, "overlap": OVERLAP_SPREAD}
    widths = [given.get(name, interval_spread(name, observations)) for name in COMPONENTS]
    return Prior(tuple(hypot(width, MACHINE_SPREAD) / TWO_SIDED_90 for width in widths), whole_spread(observations))
