"""How computing in a step differs from single calls: the clock that a GPU sustains, and the slowest GPU of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp

from predictor.core.costs.calibration import component_of
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.transfer import computes
from predictor.core.hardware.power import EXPONENT

# Half of how far two nodes of the same GPU lie apart, as a log: 7 % on H200s, 29 % on B200s.
SPREAD = 0.1
# Share of the bf16 peak that large products (all sizes 4,096 or more) reach: medians of 0.65 to 0.79 in the tables of
# eight GPUs, 0.75 on average. L40S, slowed by its power cap, has 0.60.
BOUND_BY_CLOCK = 0.75
PRODUCTS = "linear"  # family of matrix products
COMPUTING = ("compute", "attention")  # components that wait for the slowest GPU's tensor cores


def sustained(cost: Cost, reached: float, full_clock: float, limited: float = 1.0) -> Cost:
    """Return the cost, without a pause between calls, of one that alone runs at ``reached`` of the peak.

    At full clock it would draw ``reached / full_clock`` times the switching power of the limit.

    Args:
        cost: under a power limit that of a product which draws the board's whole power.
        reached: rate over the peak.
        full_clock: up to which the full clock is kept; under a power limit both are those at its clock.
        limited: switching power under a power limit over the board's own. A product that draws less than the whole
            power loses less clock, and one that draws less than the limit none.
    """
    longer = max(limited, reached / full_clock) ** (1.0 / EXPONENT)
    # The low end stays the burst's: a step that rests between its products keeps the clock up, and tables hold long
    # products at a clock that had begun to fall.
    high_us = cost.high_us * longer * exp(SPREAD * min(1.0, reached / BOUND_BY_CLOCK))
    return Cost(cost.us * longer, cost.low_us * min(1.0, longer), high_us, cost.source)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What a step does to the times of single calls.

    Attributes:
        full_clock: share of the peak up to which products keep the full clock, by ``Operator.computed_in``; empty: all.
        limited: switching power under a power limit over the board's own.
        slowest: the slowest GPU's time of computing over the median's.
        unthrottled: the share of a matrix product's time that is left where its table was measured on a GPU that ran
            slower than one of the same chip with less power; None: the table was not.
    """

    full_clock: Mapping[str, float] = field(default_factory=dict)
    limited: float = 1.0
    slowest: float = 1.0
    unthrottled: Callable[[Operator, Direction, Shape], float] | None = None

    def applied(self, cost: Cost, operator: Operator, direction: Direction, shape: Shape, reached: float) -> Cost:
        """Return the cost of a call within a step.

        Args:
            cost: of the call alone.
            operator: the call's.
            direction: the call's.
            shape: the call's.
            reached: its rate over the peak.
        """
        full_clock = self.full_clock.get(operator.computed_in)
        if full_clock is not None and computes(operator):
            cost = sustained(cost, reached, full_clock, self.limited)
        if self.unthrottled is not None and operator.family == PRODUCTS:
            share = self.unthrottled(operator, direction, shape)
            if share < 1.0:  # the high end stays the table's: a GPU in that state may be among those of a run
                cost = Cost(cost.us * share, cost.low_us * share, cost.high_us, max(cost.source, Source.EXTRAPOLATED))
        return cost * self.slowest if component_of(operator, shape) in COMPUTING else cost


NO_SLOWDOWN = Slowdown()
