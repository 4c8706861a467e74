"""Rotary position embedding on queries and keys, fused by torch.compile."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.compiled import fused, kernel_name
from predictor.core.costs.operator import Shape

BASE = 10_000.0


def rotated(queries: Tensor, keys: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Return both rotated by halves. Source: transformers, models/llama/modeling_llama.py, apply_rotary_pos_emb."""
    import torch

    def rotate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-right, left), dim=-1) * sine

    return rotate(queries), rotate(keys)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, heads, rotary_dim).

    Raises:
        ValueError: rotary_dim has no halves.
    """
    import torch

    tokens, heads, width = shape
    if width % 2:
        raise ValueError(f"rotary_dim is {width}; it must be even, as its halves are rotated together")
    queries, keys = make.activation(tokens, heads, width), make.activation(tokens, heads, width)
    frequency = BASE ** (-torch.arange(width // 2, device=make.device, dtype=torch.float32) / (width // 2))
    angle = torch.arange(tokens, device=make.device, dtype=torch.float32)[:, None, None] * frequency.repeat(2)
    cosine, sine = angle.cos().to(make.dtype), angle.sin().to(make.dtype)
    return Call(lambda: fused(rotated)(queries, keys, cosine, sine), (queries, keys), kernel_name(make))
