"""Unfused attention, first product: queries @ keysᵀ per head, scaled."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape

RARE = True


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, m, k, n)."""
    import torch

    batch, m, k, n = shape
    queries, keys = make.activation(batch, m, k), make.activation(batch, n, k)
    out = torch.empty(batch, m, n, device=make.device, dtype=make.dtype)

    def forward() -> Tensor:
        return torch.baddbmm(out, queries, keys.transpose(1, 2), beta=0.0, alpha=k**-0.5)

    return Call(forward, (queries, keys), "torch baddbmm")
