"""Unfused attention: softmax over the keys."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape

RARE = True


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence)."""
    batch, length = shape
    scores = make.activation(batch, length, length)
    return Call(lambda: scores.softmax(-1), (scores,), "torch softmax")
