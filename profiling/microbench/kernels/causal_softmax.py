"""Unfused attention: scale, causal mask and softmax, which Megatron-LM fuses and plain PyTorch does not."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.core.costs.operator import Shape

RARE = True

MASKED = -10_000.0
SCALE = 0.125


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, sequence)."""
    batch, length = shape
    scores, mask = make.activation(batch, length, length), make.causal_mask(length)

    def forward() -> Tensor:
        return (scores * SCALE).masked_fill(mask, MASKED).softmax(-1)

    return Call(forward, (scores,), "torch eager: scale, masked_fill and softmax, not fused")
