"""Clip the gradients of a list of tensors to a norm over all of them."""

from __future__ import annotations

from microbench.call import Call, Maker, parameter_list
from predictor.core.costs.operator import Shape

MAX_NORM = 1.0


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (parameters, tensors)."""
    from torch.nn.utils import clip_grad_norm_

    tensors = parameter_list(shape, make)
    return Call(lambda: clip_grad_norm_(tensors, MAX_NORM), (), "torch clip_grad_norm_")
