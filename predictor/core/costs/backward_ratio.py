"""The backward pass of a kernel that was measured forward only, by the ratio of both that the operator states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, hypot, log

from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.regressors import Outside, Regressor


@dataclass(frozen=True, slots=True)
class BackwardByRatio:
    """Times a backward pass as the forward pass times a ratio, known within ``log_error``."""

    forward: Regressor
    ratio: float
    log_error: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call; analytic."""
        cost = self.forward.answer(operator, Direction.FORWARD, shape)
        us = cost.us * self.ratio
        low = hypot(log(cost.us / cost.low_us), self.log_error)
        high = hypot(log(cost.high_us / cost.us), self.log_error)
        return Cost(us, us * exp(-low), us * exp(high), Source.ANALYTIC)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured the forward pass lies; None inside."""
        return self.forward.outside(operator, Direction.FORWARD, shape)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return hypot(self.forward.widest(operator, shape), self.log_error)


def with_backward_ratio(operator: Operator, regressors: Mapping[Direction, Regressor]) -> dict[Direction, Regressor]:
    """Return an operator's regressors; the backward pass by its ratio where it was not measured."""
    forward = regressors.get(Direction.FORWARD)
    if operator.backward_ratio is None or forward is None or Direction.BACKWARD in regressors:
        return dict(regressors)
    return {**regressors, Direction.BACKWARD: BackwardByRatio(forward, *operator.backward_ratio)}
