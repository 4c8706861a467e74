"""Sum of two activations; backward sums the gradients of the two branches."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden)."""
    x, y = make.constant(*shape), make.constant(*shape)
    left, right = make.constant(*shape), make.constant(*shape)
    return Call(lambda: x + y, (), "torch add", backward=lambda: left + right)
