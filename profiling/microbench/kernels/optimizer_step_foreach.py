"""AdamW step with one kernel per operation over the whole list (torch's foreach)."""

from __future__ import annotations

from microbench.call import Call, Maker, optimizer_call
from predictor.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (parameters, tensors)."""
    return optimizer_call(shape, make, "foreach")
