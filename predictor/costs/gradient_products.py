"""The backward pass of a matrix product, timed as the products it consists of by the forward regressor.

A linear layer (m, k) @ (k, n) has two: the gradient of its input, (m, n) @ (n, k), and that of its weight, (k, m) @
(m, n), which sums over the m tokens. Both are kernels of the same library as the forward product, so a table of forward
products times them. Evidence and the measured ratio: docs/adr/0025-backward-products.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.costs.cost import Cost, total
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import Outside, Regressor


@dataclass(frozen=True, slots=True)
class GradientProducts:
    """Times the backward pass of an operator whose gradients are products as its forward pass is."""

    forward: Regressor

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of all products of one call."""
        return total(self.forward.answer(operator, Direction.FORWARD, part) for part in _products(operator, shape))

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far the product that lies farthest outside what was measured does; None if all lie inside."""
        reaches = [self.forward.outside(operator, Direction.FORWARD, part) for part in _products(operator, shape)]
        return max(
            (reach for reach in reaches if reach is not None), key=lambda reach: reach.factor or 0.0, default=None
        )

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return self.forward.widest(operator, shape)


def _products(operator: Operator, shape: Shape) -> tuple[Shape, ...]:
    assert operator.gradient_products is not None, operator.name
    return operator.gradient_products(shape)


def with_gradients(operator: Operator, regressors: Mapping[Direction, Regressor]) -> dict[Direction, Regressor]:
    """Return an operator's regressors; a backward pass that was not measured is timed by the forward one if it can."""
    forward = regressors.get(Direction.FORWARD)
    if operator.gradient_products is None or forward is None or Direction.BACKWARD in regressors:
        return dict(regressors)
    return {Direction.FORWARD: forward, Direction.BACKWARD: GradientProducts(forward)}
