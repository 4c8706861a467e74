"""The backward pass of a matrix product, timed as the products that it consists of by the forward regressor.

A linear layer (m, k) @ (k, n) has two: the gradient of its input, (m, n) @ (n, k), and that of its weight, (k, m) @
(m, n), which sums over the m tokens. Both are kernels of the same library as the forward product, so a table of forward
products times them. Evidence and the measured ratio: docs/adr/0025-backward-products.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

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


@dataclass(frozen=True, slots=True)
class ConstantGradients:
    """A measured backward pass that was fed constant gradients, which draw less power than any that training has.

    Its products by the forward regressor, which was fed random numbers, are the other bound. Where they are longer, the
    answer is the geometric mean of both, and the interval covers both.

    Attributes:
        measured: the backward pass as measured.
        products: its products.
    """

    measured: Regressor
    products: GradientProducts

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost between both; as measured where that is longer than the products."""
        measured = self.measured.answer(operator, direction, shape)
        products = self.products.answer(operator, direction, shape)
        if products.us <= measured.us:
            return measured
        source = max(measured.source, products.source)
        return Cost(sqrt(measured.us * products.us), measured.low_us, products.high_us, source)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured the call lies; None where it or its products lie inside."""
        reaches = [regressor.outside(operator, direction, shape) for regressor in (self.measured, self.products)]
        return reaches[0] if all(reach is not None for reach in reaches) else None

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return max(regressor.widest(operator, shape) for regressor in (self.measured, self.products))


def with_gradients(
    operator: Operator, regressors: Mapping[Direction, Regressor], constant_gradients: bool
) -> dict[Direction, Regressor]:
    """Return an operator's regressors; a backward pass of products that was not measured is timed by the forward one.

    Args:
        operator: of the regressors.
        regressors: as measured.
        constant_gradients: the measured backward passes were fed constant gradients, see ``System.gradients``.
    """
    forward, backward = (regressors.get(direction) for direction in Direction)
    if operator.gradient_products is None or forward is None or (backward is not None and not constant_gradients):
        return dict(regressors)
    products = GradientProducts(forward)
    between = products if backward is None else ConstantGradients(backward, products)
    return {Direction.FORWARD: forward, Direction.BACKWARD: between}


def as_measured(regressor: Regressor) -> Regressor:
    """Return what a table's rows are judged by: the backward pass with the gradients that it was fed."""
    return regressor.measured if isinstance(regressor, ConstantGradients) else regressor


def each(regressor: Regressor, change: Callable[[Regressor], Regressor]) -> Regressor:
    """Return a regressor whose parts were changed, those that times of products are made of included."""
    if isinstance(regressor, GradientProducts):
        return GradientProducts(change(regressor.forward))
    if isinstance(regressor, ConstantGradients):
        return ConstantGradients(change(regressor.measured), GradientProducts(change(regressor.products.forward)))
    return change(regressor)
