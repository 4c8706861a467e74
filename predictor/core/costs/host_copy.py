"""Copies between host memory and a GPU, by their bytes over the link between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.operators import host_to_device
from predictor.core.costs.regressors import Outside

# Share of a link's rate that copies of pinned memory reach: 24.8 of 31.5 GB/s on an A100 of eight, 55.6 of 63 GB/s over
# PCIe 5. Source: NVIDIA developer forum, thread 352186, and NVIDIA's blog on nvbandwidth, host_to_device_memcpy_ce.
EFFICIENCY = 0.83
# At worst two GPUs behind one switch copy at a time (DGX A100 system architecture: two GPUs a switch).
SHARED_BY = 2
# Copies of pageable memory pass through a pinned buffer of the driver, which one thread fills: 300 MB in 50 ms over
# PCIe 4 x16 (efeslab/fiddler, issue 7), half of what one thread streams, as each byte is read and written.
PAGEABLE_GB_PER_S = 6.0
PINNED_COPY = host_to_device.OPERATOR
PAGEABLE_COPY = replace(PINNED_COPY, name="pageable_copy", source="every byte over the link once, by way of a buffer")
NAMES = frozenset({PINNED_COPY.name, PAGEABLE_COPY.name})


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
        if operator.name == PAGEABLE_COPY.name:
            us = max(us, shape[0] / (PAGEABLE_GB_PER_S * 1e3))
        return Cost(us, least_us, SHARED_BY * us, Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return that no copy was measured."""
        return Outside("operator", None)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval, as a log; of no operator that is timed as copies."""
        raise AssertionError(f"{operator.name} stands in for no operator")
