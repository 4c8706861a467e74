"""The cost of an operator that was not measured, transferred from another operator."""

from __future__ import annotations

from math import exp, hypot
from typing import NamedTuple

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Regressor
from predictor.core.costs.transfer import computes

# Streams reach different shares of the memory bandwidth: GELU timed by its bytes at the rate of a residual addition is
# predicted 7 to 36 % too short (logarithmic; both passes, A100 and GH200). Donors of matrix products are matrix
# products, and keep their own interval.
STREAM_STAND_IN = 0.36
# Least duration of a kernel: the shortest time in the tables of both measured GPUs, of GELU forward on Vista's GH200;
# the shortest on Perlmutter's A100 is 6 µs.
LEAST_KERNEL_US = 2.9


class Call(NamedTuple):
    """A call that a regressor can time: the call itself, or ``times`` calls of a donor operator (``stands_in``).

    ``log_error`` is the half width of what is not known about ``times``, as a log. ``is_analytic``: the donor gives a
    rate of FLOPs or bytes only.
    """

    operator: Operator
    shape: Shape
    times: float
    regressor: Regressor
    stands_in: bool
    log_error: float = 0.0
    is_analytic: bool = False

    def cost(self, direction: Direction) -> Cost:
        """Return the cost; from a donor operator it is extrapolated at best, its interval that of an extrapolation."""
        answer = self.regressor.answer(self.operator, direction, self.shape)
        if not self.stands_in:
            return answer
        answer = answer * self.times
        least = 0.0 if computes(self.operator) else STREAM_STAND_IN
        width = hypot(max(least, self.regressor.widest(self.operator, self.shape)), self.log_error)
        return Cost(
            answer.us,
            min(answer.low_us, answer.us * exp(-width)),
            max(answer.high_us, answer.us * exp(width)),
            Source.ANALYTIC if self.is_analytic else max(answer.source, Source.EXTRAPOLATED),
        )


def bounded(cost: Cost, least_us: float, likely_us: float) -> Cost:
    """Return a donor's cost that is no shorter than what the call itself needs.

    Args:
        cost: of the donor.
        least_us: what no implementation beats; no end of the interval is shorter.
        likely_us: what the call takes at least at the rates that this system reached; the interval moves along.
    """
    scale = max(1.0, least_us / cost.us, likely_us / cost.us) if cost.us > 0.0 else 1.0
    us = max(cost.us, least_us, likely_us)
    return Cost(us, max(cost.low_us, min(least_us, us)), max(us, cost.high_us * scale), cost.source)
