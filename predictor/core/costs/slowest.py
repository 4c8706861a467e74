"""The slowest of many GPUs: all ranks of a step wait for it.

GPUs of one model differ, since each reaches another clock under the same power limit. What they compute differs by as
much; what streams memory or crosses links hardly does. The spread is that of 18,800 hours on five clusters: the range
of a benchmark's times, outliers left out, is 8 % of its median on average, whatever the application. A box plot's
whiskers are 5.4 standard deviations apart, so one is 1.5 %.

Source: Sinha et al. 2022, arXiv:2208.11035.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from predictor.core.costs.published import PublishedSystem
from predictor.core.costs.variants import below_calibration, slowed

RANK_SPREAD = 0.08 / 5.4


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of so many standard normal numbers; zero of a single one.

    Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables, by the quantile (n − 3/8) / (n + 1/4).

    >>> [round(expected_maximum(count), 2) for count in (1, 8, 1024)]
    [0.0, 1.43, 3.23]
    """
    from statistics import NormalDist  # imports much, and a start without a prediction needs none of it

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


@lru_cache(maxsize=256)
def slowest_of(system: PublishedSystem, num_gpus: int) -> PublishedSystem:
    """Return a system as a step over so many GPUs finds it; processors that compute and send are left as they are."""
    if num_gpus == 1 or system.hardware.links.engine == "processor":
        return system
    if system.uncalibrated is not None:
        return below_calibration(system, lambda published: slowest_of(published, num_gpus))
    said = system.hardware.gpu.rank_spread
    spread = RANK_SPREAD if said is None else said.value
    return slowed(system, replace(system.slowdown, slowest=1.0 + spread * expected_maximum(num_gpus)))


def slowdown(system: PublishedSystem) -> float:
    """Return the slowest GPU's time of computing over the median's; 1 where a step does not wait for one."""
    return slowdown(system.uncalibrated) if system.uncalibrated is not None else system.slowdown.slowest
