"""Encodings of positions that have no weights: rotary and sinusoidal."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotary_table(max_seq_len: int, d_head: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines, each (max_seq_len, d_head), of the angles position · theta^(-2i / d_head).

    The second half of the columns repeats the first, as GPT-NeoX and LLaMA pair coordinate i with i + d_head / 2; sines
    of the first half are negative, which saves ``rotate`` a pass.

    Source: Su et al. 2021, arXiv:2104.09864, equation 34.
    """
    frequencies = theta ** (-torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of coordinates (i, i + d_head / 2) by their angle.

    Args:
        heads: (…, d_head).
        cos: of the angles; broadcast over ``heads``, with the same dtype.
        sin: signed sines, as ``cos``.
    """
    first, second = heads.chunk(2, dim=-1)
    return torch.addcmul(heads * cos, torch.cat((second, first), dim=-1), sin)


def sinusoidal_table(max_seq_len: int, d_model: int) -> Tensor:
    """Return (max_seq_len, d_model): sines in the even columns, cosines in the odd ones.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    position = torch.arange(max_seq_len, dtype=torch.float32).unsqueeze(1)
    frequencies = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float32) * (-math.log(10000.0) / d_model))
    table = torch.empty(max_seq_len, d_model)
    table[:, 0::2] = torch.sin(position * frequencies)
    table[:, 1::2] = torch.cos(position * frequencies)
    return table
