"""SwiGLU: the gate half of the inner activations through SiLU, times the other half."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, width)."""
    from torch.nn.functional import silu

    tokens, width = shape
    x = make.activation(tokens, 2 * width)

    def forward() -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return silu(gate) * value

    return Call(forward, (x,), "torch eager: silu and product")
