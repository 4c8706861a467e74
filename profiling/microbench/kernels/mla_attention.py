"""Causal attention with keys wider than values: torch's flash backend, which has them padded, or its cuDNN backend."""

from __future__ import annotations

from microbench.attention import recorded, torch_backend
from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape
from predictor.core.costs.operators.mla_attention import KEY_WIDTH, VALUE_WIDTH

RARE = True


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads)."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import pad, scaled_dot_product_attention

    batch, length, heads = shape
    inputs = tuple(make.activation(batch, length, heads, width) for width in (KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH))
    queries, keys, values = (x.transpose(1, 2) for x in inputs)
    backend, name = torch_backend(make)

    def padded() -> Tensor:
        with sdpa_kernel(backend):
            wide = pad(values, (0, KEY_WIDTH - VALUE_WIDTH))
            return scaled_dot_product_attention(queries, keys, wide, is_causal=True)[..., :VALUE_WIDTH]

    def direct() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(queries, keys, values, is_causal=True)

    if make.attention_kernel:
        return Call(direct, inputs, recorded(make, name))
    return Call(padded, inputs, recorded(make, f"{name}, values padded"))
