"""Copy of a tensor into a new one; backward copies the gradient."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    x, gradient = make.constant(*shape), make.constant(*shape)
    return Call(lambda: x.clone(), (), "torch clone", backward=lambda: gradient.clone())
