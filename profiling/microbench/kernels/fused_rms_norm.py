"""RMSNorm, fused by torch.compile: computed in fp32, read and written in the training precision."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.compiled import fused, kernel_name
from predictor.core.costs.operator import Shape

EPSILON = 1e-6


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return the norm of every row, scaled. Source: transformers, models/llama/modeling_llama.py, LlamaRMSNorm."""
    wide = x.float()
    return weight * (wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, hidden)."""
    tokens, hidden = shape
    x, weight = make.activation(tokens, hidden), make.weight(hidden)
    return Call(lambda: fused(rms_norm)(x, weight), (x, weight), kernel_name(make))
