"""The cost of an operator that was not measured, transferred from another operator."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from predictor.costs.cost import Cost, Source
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import Regressor
from predictor.costs.transfer import computes

# Streams differ in how near they come to the memory bandwidth: a residual addition standing in for GELU by its bytes
# is 7 to 36 % short (logarithmic; forward and backward, A100 and GH200). Matrix products stand in for themselves.
STREAM_STAND_IN = 0.36


class Call(NamedTuple):
    """A call as a regressor can answer it: itself, or what stands in for it so many times over."""

    operator: Operator
    shape: Shape
    times: float
    regressor: Regressor
    stands_in: bool

    def cost(self, direction: Direction) -> Cost:
        """Return the cost; a stand-in's is extrapolated at best, and no surer than outside its measured range."""
        answer = self.regressor.answer(self.operator, direction, self.shape)
        if not self.stands_in:
            return answer
        answer = answer * self.times
        least = 0.0 if computes(self.operator) else STREAM_STAND_IN
        width = max(least, self.regressor.widest(self.operator, self.shape))
        return Cost(
            answer.us,
            min(answer.low_us, answer.us * exp(-width)),
            max(answer.high_us, answer.us * exp(width)),
            max(answer.source, Source.EXTRAPOLATED),
        )
