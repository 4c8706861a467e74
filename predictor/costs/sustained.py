"""How much longer matrix products take for as long as a training step repeats than in a table's short bursts.

A GPU that multiplies large matrices of random numbers without a pause draws all the power that its board allows, and
its clock settles below that of a burst: H200s at 1,405 to 1,527 MHz of 1,980, B200s at 1,228 to 1,410 of 1,965 (Bekman,
ml-engineering, compute/accelerator/benchmarks, MSMF). Tables of single products hold bursts, of weights that were never
written (vLLM's layers under aiconfigurator's collector), so that they draw less power still.

The ratio of both is that of the fastest sustained products to the fastest twentieth of the table's, since both run the
same kernels at different clocks. It applies to the time that the tensor cores decide: wholly to a product that reaches
BOUND_BY_CLOCK of the peak, in part to a slower one. Costs of single calls (``fitting evaluate``, ``predict_operator``)
stay those of the tables. Rates and sources: ``device_sheets.yaml``; a GPU that ``microbench system`` measured says its
own ratio.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from math import exp

from predictor.costs.cost import Cost
from predictor.costs.device_sheets import sheet_named
from predictor.costs.hardware import Gpu
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.published import PublishedSystem
from predictor.costs.transfer import computes

# Half of how far two nodes of the same GPU lie apart, as a log: 7 % on H200s, 29 % on B200s.
SPREAD = 0.1
# Share of the peak that large products reach in the tables of eight GPUs, 0.69 to 0.80.
BOUND_BY_CLOCK = 0.75


def sustained_ratio(gpu: Gpu, precision: str) -> float:
    """Return the sustained rate of large products over that of the table's bursts, at most 1; 1 where not known."""
    if gpu.sustained_product_ratio is not None:
        return min(1.0, gpu.sustained_product_ratio.value)
    sheet = sheet_named(gpu.name)
    if sheet is None or precision not in sheet.sustained_tflop_per_s or precision not in sheet.burst_tflop_per_s:
        return 1.0
    return min(1.0, sheet.sustained_tflop_per_s[precision] / sheet.burst_tflop_per_s[precision])


def slowed(cost: Cost, share: float, ratio: float) -> Cost:
    """Return the cost of a call whose tensor-core ``share`` runs at ``ratio`` of its rate."""
    longer = 1.0 + share * (1.0 / ratio - 1.0)
    # The low end stays the burst's: a step that rests between its products keeps the clock up.
    low = max(cost.low_us, cost.low_us * longer * exp(-SPREAD * share))
    return Cost(cost.us * longer, low, cost.high_us * longer * exp(SPREAD * share), cost.source)


class SustainedSystem(PublishedSystem):
    """A published system whose matrix products run at the rate that they keep up over a step."""

    _ratio: float
    _sustained: dict[tuple[str, str, Direction, Shape], Cost]

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call within a step.

        Raises:
            PublishedError: as ``PublishedSystem.cost``.
        """
        key = (operator.name, operator.computed_in + operator.kernel, direction, shape)
        answer = self._sustained.get(key)
        if answer is None:
            answer = self._sustained[key] = self._within_step(operator, direction, shape)
        return answer

    def _within_step(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        cost = super().cost(operator, direction, shape)
        if not computes(operator) or not cost.us:
            return cost
        work = operator.work(shape, direction, int(self.hardware.gpu.num_multiprocessors.value))
        reached = work.flops / (cost.us * 1e6 * self.peak_of(operator))
        return slowed(cost, min(1.0, reached / BOUND_BY_CLOCK), self._ratio)

    def forget(self) -> None:
        """Clear the cache of answers; regressors stay loaded."""
        super().forget()
        self._sustained.clear()


@lru_cache(maxsize=64)
def in_training(system: PublishedSystem) -> PublishedSystem:
    """Return a system as it runs in a training step; unchanged where it sustains what its tables hold."""
    ratio = sustained_ratio(system.hardware.gpu, system.precision)
    if ratio == 1.0:
        return system
    other = copy(system)
    other.__class__ = SustainedSystem
    assert isinstance(other, SustainedSystem)
    other._ratio, other._sustained = ratio, {}
    return other
