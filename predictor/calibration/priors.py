"""Where every factor starts: at 1, as far from it as published times are known to miss."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log, sqrt
from statistics import fmean

from predictor.calibration.observations import Observation, half_width
from predictor.costs.hardware import COMPONENTS, Component
from predictor.step.calibrated import TWO_SIDED_90
from predictor.step.composition import MACHINE_SPREAD
from predictor.step.families import families

# Half widths of 90 % intervals, as logs, of what no published interval tells. Launches were timed on two clusters'
# processors, an EPYC 7763 and a Grace, at 28 and 30 µs; servers' single threads lie within a factor of 1.5. Of hidden
# traffic between none and half costs time beside computing: kernels that share the GPU's bandwidth and processors.
HOST_SPREAD = log(1.5)
OVERLAP_SPREAD = log(1.5)


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


def prior_deviations(observations: Sequence[Observation]) -> list[float]:
    """Return the standard deviation of every factor's log, in the order of ``COMPONENTS``."""
    own = {"host": HOST_SPREAD, "overlap": OVERLAP_SPREAD}
    family = family_spread(observations)
    return [
        hypot(own.get(name, interval_spread(name, observations)) / TWO_SIDED_90, MACHINE_SPREAD / TWO_SIDED_90, family)
        for name in COMPONENTS
    ]
