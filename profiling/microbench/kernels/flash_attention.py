"""Exact attention in one kernel: flash-attn's where it is installed, else one backend of torch's own."""

from __future__ import annotations

from microbench.attention import packaged_function, recorded, torch_backend
from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence, heads, head_dim, causal)."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, length, heads, width, causal = shape
    inputs = tuple(make.activation(batch, length, heads, width) for _ in range(3))
    packaged = packaged_function(make)
    if packaged is not None:
        return Call(lambda: packaged(*inputs, causal=bool(causal)), inputs, recorded(make, "flash-attn"))
    # Without this context torch may silently take its unfused backend; with it, a shape it cannot run is an error.
    backend, name = torch_backend(make)
    queries, keys, values = (x.transpose(1, 2) for x in inputs)

    def forward() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(queries, keys, values, is_causal=bool(causal))

    return Call(forward, inputs, recorded(make, name))
