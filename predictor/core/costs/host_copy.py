"""The copy of a batch from host memory to a GPU, by its bytes over the link between them."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Outside

NAME = "host_to_device"
# Share of a link's rate that copies of pinned memory reach: 24.8 of 31.5 GB/s on an A100 of eight, 55.6 of 63 GB/s over
# PCIe 5. Source: NVIDIA developer forum, thread 352186, and NVIDIA's blog on nvbandwidth, host_to_device_memcpy_ce.
EFFICIENCY = 0.83
# At worst two GPUs behind one switch copy at a time (DGX A100 system architecture: two GPUs a switch).
SHARED_BY = 2


@dataclass(frozen=True, slots=True)
class HostCopyRegressor:
    """Times copies by a data sheet.

    Attributes:
        gb_per_s: of the link, in one direction.
    """

    gb_per_s: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one copy: from the link's full rate to half of what a lone copy reaches."""
        least_us = shape[0] / (self.gb_per_s * 1e3)
        us = least_us / EFFICIENCY
        return Cost(us, least_us, SHARED_BY * us, Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that no copy was measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log; of no operator that is timed as copies."""
        raise AssertionError(f"{operator.name} stands in for no operator")
