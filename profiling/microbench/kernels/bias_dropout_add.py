"""Bias, dropout and residual addition behind attention and FFN."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape

PROBABILITY = 0.1


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden)."""
    from torch.nn.functional import dropout

    x, residual, bias = make.activation(*shape), make.activation(*shape), make.weight(shape[1])

    def forward() -> Tensor:
        return residual + dropout(x + bias, PROBABILITY, training=True)

    return Call(forward, (x, residual, bias), "torch eager: add, dropout and add")
