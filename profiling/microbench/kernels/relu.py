"""Rectified linear unit."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    from torch.nn.functional import relu

    x = make.activation(*shape)
    return Call(lambda: relu(x), (x,), "torch relu")
