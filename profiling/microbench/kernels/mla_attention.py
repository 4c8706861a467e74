"""Causal attention with keys wider than values, which are padded to the keys' width: torch's flash backend."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.costs.operator import Shape
from predictor.costs.operators.mla_attention import KEY_WIDTH, VALUE_WIDTH


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import pad, scaled_dot_product_attention

    batch, length, heads = shape
    inputs = tuple(make.activation(batch, length, heads, width) for width in (KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH))
    queries, keys, values = (x.transpose(1, 2) for x in inputs)

    def forward() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            padded = pad(values, (0, KEY_WIDTH - VALUE_WIDTH))
            return scaled_dot_product_attention(queries, keys, padded, is_causal=True)[..., :VALUE_WIDTH]

    return Call(forward, inputs, "torch scaled_dot_product_attention, flash backend, values padded")
