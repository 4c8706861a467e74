"""Fused LayerNorm."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden)."""
    from torch.nn.functional import layer_norm

    tokens, hidden = shape
    x, weight, bias = make.activation(tokens, hidden), make.weight(hidden), make.weight(hidden)
    return Call(lambda: layer_norm(x, (hidden,), weight, bias), (x, weight, bias), "torch layer_norm")
