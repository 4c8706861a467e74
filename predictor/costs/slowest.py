"""The slowest of many GPUs: all ranks of a step wait for it.

GPUs of one model differ, since each reaches another clock under the same power limit. What they compute differs by as
much; what streams memory or crosses links hardly does. The spread is that of 18,800 hours on five clusters: the range
of a benchmark's times, outliers left out, is 8 % of its median on average, whatever the application. A box plot's
whiskers are 5.4 standard deviations apart, so one is 1.5 %.

Source: Sinha et al. 2022, arXiv:2208.11035.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache

from predictor.costs.calibration import component_of
from predictor.costs.cost import Cost
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.published import PublishedSystem
from predictor.costs.sustained import SustainedSystem
from predictor.costs.variants import below_calibration

RANK_SPREAD = 0.08 / 5.4
COMPUTING = ("compute", "attention")


@lru_cache(maxsize=256)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of so many standard normal numbers; zero of a single one.

    Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables, by the quantile (n − 3/8) / (n + 1/4).

    >>> [round(expected_maximum(count), 2) for count in (1, 8, 1024)]
    [0.0, 1.43, 3.23]
    """
    from statistics import NormalDist  # imports much, and a start without a prediction needs none of it

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


class _WaitsForSlowest(PublishedSystem):
    """A published system on which computing takes as long as on the slowest of a run's GPUs."""

    _slowdown: float

    @property
    def slowdown(self) -> float:
        """Return the slowest GPU's time of computing over the median's."""
        return self._slowdown

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call on the slowest GPU.

        Raises:
            PublishedError: as ``PublishedSystem.cost``.
        """
        cost = super().cost(operator, direction, shape)
        return cost * self._slowdown if component_of(operator, shape) in COMPUTING else cost


class _Sustained(_WaitsForSlowest, SustainedSystem):
    """The same, of a system whose products run at the rate that they keep up."""


@lru_cache(maxsize=256)
def slowest_of(system: PublishedSystem, num_gpus: int) -> PublishedSystem:
    """Return a system as a step over so many GPUs finds it; processors that compute and send are left as they are."""
    if num_gpus == 1 or system.hardware.links.engine == "processor":
        return system
    if system._published is not None:
        return below_calibration(system, lambda published: slowest_of(published, num_gpus))
    said = system.hardware.gpu.rank_spread
    other = copy(system)
    other.__class__ = _Sustained if isinstance(system, SustainedSystem) else _WaitsForSlowest
    assert isinstance(other, _WaitsForSlowest)
    other._slowdown = 1.0 + (RANK_SPREAD if said is None else said.value) * expected_maximum(num_gpus)
    return other


def slowdown(system: PublishedSystem) -> float:
    """Return the slowest GPU's time of computing over the median's; 1 where a step does not wait for one."""
    if system._published is not None:
        return slowdown(system._published)
    return system.slowdown if isinstance(system, _WaitsForSlowest) else 1.0
