"""GELU on the FFN's inner activations."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, width)."""
    from torch.nn.functional import gelu

    x = make.activation(*shape)
    return Call(lambda: gelu(x), (x,), "torch gelu")
