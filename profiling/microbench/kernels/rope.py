"""Rotary position embedding on queries and keys, as single PyTorch operations."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape

BASE = 10_000.0


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, heads, rotary_dim)."""
    import torch

    tokens, heads, width = shape
    queries, keys = make.activation(tokens, heads, width), make.activation(tokens, heads, width)
    half = width - width // 2
    frequency = BASE ** (-torch.arange(half, device=make.device, dtype=torch.float32) / half)
    angle = torch.arange(tokens, device=make.device, dtype=torch.float32)[:, None, None] * frequency
    angle = torch.cat((angle, angle[..., : width - half]), dim=-1)
    cosine, sine = angle.cos().to(make.dtype), angle.sin().to(make.dtype)

    def rotate(x: Tensor) -> Tensor:
        left, right = x[..., :half], x[..., half:]
        return x * cosine + torch.cat((-right, left), dim=-1) * sine

    return Call(lambda: (rotate(queries), rotate(keys)), (queries, keys), "torch eager, unfused")
