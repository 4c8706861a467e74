"""RMSNorm as single PyTorch operations, as GPT-NeoX runs it."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape

EPSILON = 1e-6


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden)."""
    tokens, hidden = shape
    x, weight = make.activation(tokens, hidden), make.weight(hidden)

    def forward() -> Tensor:
        return weight * (x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt())

    return Call(forward, (x, weight), "torch eager, unfused")
