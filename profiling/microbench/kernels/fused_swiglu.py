"""SwiGLU, fused by torch.compile: SiLU of the gate, times the up-projection's output."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.compiled import fused, kernel_name
from predictor.core.costs.operator import Shape


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return the gated activation. Source: torchtitan, models/llama3/model/model.py, FeedForward."""
    from torch.nn.functional import silu

    return silu(gate) * up


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, width)."""
    gate, up = make.activation(*shape), make.activation(*shape)
    return Call(lambda: fused(swiglu)(gate, up), (gate, up), kernel_name(make))
