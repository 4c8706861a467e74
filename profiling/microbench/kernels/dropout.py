"""Dropout whose mask is drawn from a generator of its own, so that it does not depend on the number of ranks."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from predictor.costs.operator import Shape

RATE, SEED = 0.5, 1


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    import torch

    x = make.activation(*shape)
    generator = torch.Generator(x.device).manual_seed(SEED)

    def forward() -> Tensor:
        drawn = torch.rand(shape, generator=generator, device=x.device)
        return x * (drawn >= RATE).to(x.dtype).mul_(1.0 / (1.0 - RATE))

    return Call(forward, (x,), "torch rand, mask and product")
