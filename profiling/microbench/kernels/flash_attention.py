"""Exact attention in one kernel: flash-attn on a GPU where it is installed, else torch's own flash backend."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.costs.operator import Shape


def flash_attn_function(make: Maker) -> Tensor:
    """Return flash-attn's function where it is installed and runs, else None."""
    if make.device == "cpu" or make.precision == "fp32":
        return None
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return None
    return flash_attn_func


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads, head_dim, causal)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, length, heads, width, causal = shape
    inputs = tuple(make.activation(batch, length, heads, width) for _ in range(3))
    flash = flash_attn_function(make)
    if flash is not None:
        return Call(lambda: flash(*inputs, causal=bool(causal)), inputs, "flash-attn")
    # Without this context torch may silently take its unfused backend; with it, a shape it cannot run is an error.
    queries, keys, values = (x.transpose(1, 2) for x in inputs)

    def forward() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(queries, keys, values, is_causal=bool(causal))

    return Call(forward, inputs, "torch scaled_dot_product_attention, flash backend")
