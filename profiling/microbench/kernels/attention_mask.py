"""Unfused attention: write a large negative value where the mask forbids attention."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape

RARE = True

MASKED = -10_000.0


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence)."""
    batch, length = shape
    scores, mask = make.activation(batch, length, length), make.causal_mask(length)
    return Call(lambda: scores.masked_fill(mask, MASKED), (scores,), "torch masked_fill")
