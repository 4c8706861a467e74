"""Unfused attention, second product: probabilities @ values per head."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape

RARE = True


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, m, k, n)."""
    import torch

    batch, m, k, n = shape
    probabilities, values = make.activation(batch, m, k), make.activation(batch, k, n)
    return Call(lambda: torch.bmm(probabilities, values), (probabilities, values), "torch bmm")
