"""AdamW step in one fused kernel over the whole list."""

from __future__ import annotations

from microbench.call import Call, Maker, optimizer_call
from predictor.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (parameters, tensors)."""
    return optimizer_call(shape, make, "fused")
