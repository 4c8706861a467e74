"""The cost of an operator that was not measured, transferred from another operator."""

from __future__ import annotations

from math import exp, hypot
from typing import NamedTuple

from predictor.costs.cost import Cost, Source
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import Regressor
from predictor.costs.transfer import computes

# Streams reach different shares of the memory bandwidth: GELU timed by its bytes at the rate of a residual addition is
# predicted 7 to 36 % too short (logarithmic; both passes, A100 and GH200). Donors of matrix products are matrix
# products, and keep their own interval.
STREAM_STAND_IN = 0.36


class Call(NamedTuple):
    """A call that a regressor can time: the call itself, or ``times`` calls of a donor operator (``stands_in``).

    ``log_error`` is the half width of what is not known about ``times``, as a log.
    """

    operator: Operator
    shape: Shape
    times: float
    regressor: Regressor
    stands_in: bool
    log_error: float = 0.0

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
            max(answer.source, Source.EXTRAPOLATED),
        )
