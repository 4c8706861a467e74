"""What matrix products run at for as long as a training step repeats, beside what they reach in a table's short bursts.

A GPU that multiplies large matrices of random numbers without a pause draws all the power that its board allows, and
its clock settles below the boost clock. The fastest products then run at 257 of 312 TFLOP/s on an A100 (295 with
zeros), at 699 and 752 on two nodes of H200s, at 1,426 on B200s: the rates in ``device_sheets.yaml``, with sources.
Tables of single products hold faster ones: of short bursts, of the backward pass with constant gradients.

In a step no product is faster than that. Costs of single calls (``fitting evaluate``, ``predict_operator``) stay those
of the tables.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from math import exp

from predictor.costs.cost import Cost
from predictor.costs.device_sheets import sheet_named
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.power import clock_ratio
from predictor.costs.published import PublishedSystem

# Half of the spread of the rate over the eight GPUs of a node under load: 4.5 % on H200s, 10.4 % on B200s. As a log.
SPREAD = 0.05


def sustained_tflop_per_s(system: PublishedSystem) -> float | None:
    """Return the fastest rate that products of large matrices keep up in a system's precision; None if not known."""
    gpu = system.hardware.gpu
    sheet = sheet_named(gpu.name)
    rate = None if sheet is None else sheet.sustained_tflop_per_s.get(system.precision)
    return None if rate is None else rate * clock_ratio(gpu)


def held(cost: Cost, least_us: float) -> Cost:
    """Return a cost that is no shorter than ``least_us``; the low end of its interval stays."""
    if cost.us >= least_us:
        return cost
    return Cost(least_us, min(cost.low_us, least_us), max(cost.high_us, least_us * exp(SPREAD)), cost.source)


class SustainedSystem(PublishedSystem):
    """A published system whose matrix products run at the rate that they keep up over a step."""

    _rate: float

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call within a step.

        Raises:
            PublishedError: as ``PublishedSystem.cost``.
        """
        cost = super().cost(operator, direction, shape)
        if operator.family != "linear" or operator.computed_in:
            return cost
        multiprocessors = int(self.hardware.gpu.num_multiprocessors.value)
        return held(cost, operator.work(shape, direction, multiprocessors).flops / (self._rate * 1e6))


@lru_cache(maxsize=64)
def in_training(system: PublishedSystem) -> PublishedSystem:
    """Return a system as it runs in a training step; unchanged where no sustained rate is known."""
    rate = sustained_tflop_per_s(system)
    if rate is None:
        return system
    other = copy(system)
    other.__class__ = SustainedSystem
    assert isinstance(other, SustainedSystem)
    other._rate = rate
    return other
