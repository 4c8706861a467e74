"""The backward pass of a matrix product, timed as the products that it consists of by the forward regressor.

A linear layer (m, k) @ (k, n) has two: the gradient of its input, (m, n) @ (n, k), and that of its weight, (k, m) @
(m, n), which sums over the m tokens. Tables of these products time them where there are any. Both are kernels of the
same library as the forward product, so that a table of forward products times them too. Evidence and the measured
ratio: docs/adr/0025-backward-products.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, total
from predictor.core.costs.operator import FP32_WEIGHT_GRADIENT, Direction, Operator, Shape
from predictor.core.costs.regressors import Outside, Regressor


@dataclass(frozen=True, slots=True)
class GradientProducts:
    """Times the backward pass of an operator whose gradients are products as its forward pass is."""

    forward: Regressor

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of all products of one call."""
        return total(self.forward.answer(operator, Direction.FORWARD, part) for part in _products(operator, shape))

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far the product that lies farthest outside what was measured does; None if all lie inside."""
        return _farthest(self.forward.outside(operator, Direction.FORWARD, part) for part in _products(operator, shape))

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        return self.forward.widest(operator, shape)


def _products(operator: Operator, shape: Shape) -> tuple[Shape, ...]:
    assert operator.gradient_products is not None, operator.name
    return operator.gradient_products(shape)


def _farthest(reaches: Iterable[Outside | None]) -> Outside | None:
    return max((reach for reach in reaches if reach is not None), key=lambda reach: reach.factor or 0.0, default=None)


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


@dataclass(frozen=True, slots=True)
class MeasuredProducts:
    """Times the products of a backward pass by tables of their own.

    Attributes:
        parts: the regressor of each of ``Operator.gradient_operators`` that has one.
        whole: of the whole pass.
        is_sum: ``whole`` was not measured with gradients that training has: the sum of both products answers for it.
    """

    parts: Mapping[str, Regressor]
    whole: Regressor
    is_sum: bool

    def _parts(self, operator: Operator, shape: Shape) -> list[tuple[Regressor, Operator, Shape]] | None:
        """Return the products with tables; None where the whole pass has its own, or one of them has none."""
        names = operator.gradient_operators
        if not self.parts.keys() >= set(names) or not (self.is_sum or operator.kernel):
            return None
        shapes = _products(operator, shape)
        return [(self.parts[name], catalogue()[name], part) for name, part in zip(names, shapes, strict=True)]

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of the products of one call."""
        parts = self._parts(operator, shape)
        if parts is None:
            return self.whole.answer(operator, direction, shape)
        return total(regressor.answer(own, Direction.FORWARD, part) for regressor, own, part in parts)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far the product that lies farthest outside its table does; None if all lie inside."""
        parts = self._parts(operator, shape)
        if parts is None:
            return self.whole.outside(operator, direction, shape)
        return _farthest(regressor.outside(own, Direction.FORWARD, part) for regressor, own, part in parts)

    def widest(self, operator: Operator, shape: Shape) -> float:
        """Return the half width of the interval outside what was measured, as a log."""
        parts = self._parts(operator, shape)
        if parts is None:
            return self.whole.widest(operator, shape)
        return max(regressor.widest(own, part) for regressor, own, part in parts)


Read = Callable[[Operator], dict[Direction, Regressor]]


def regressors_of(operator: Operator, read: Read, constant_gradients: bool) -> dict[Direction, Regressor]:
    """Return an operator's regressors, its backward pass by tables of its products where they say more.

    Args:
        operator: of the regressors.
        read: returns the regressors of an operator's own tables.
        constant_gradients: the measured backward passes were fed constant gradients, see ``System.gradients``.
    """
    measured = read(operator)
    found = with_gradients(operator, measured, constant_gradients)
    names = (*operator.gradient_operators, FP32_WEIGHT_GRADIENT) if operator.gradient_operators else ()
    parts = {name: own for name in names if (own := read(catalogue()[name]).get(Direction.FORWARD)) is not None}
    if parts and Direction.BACKWARD in found:
        is_sum = constant_gradients or Direction.BACKWARD not in measured
        found[Direction.BACKWARD] = MeasuredProducts(parts, found[Direction.BACKWARD], is_sum)
    return found


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


def each(regressor: Regressor, change: Callable[[Regressor], Regressor]) -> Regressor:
    """Return a regressor whose parts were changed, those that times of products are made of included."""
    if isinstance(regressor, GradientProducts):
        return GradientProducts(change(regressor.forward))
    if isinstance(regressor, MeasuredProducts):
        parts = {name: change(part) for name, part in regressor.parts.items()}
        return MeasuredProducts(parts, each(regressor.whole, change), regressor.is_sum)
    if isinstance(regressor, ConstantGradients):
        return ConstantGradients(change(regressor.measured), GradientProducts(change(regressor.products.forward)))
    return change(regressor)
