"""Dropout whose mask is drawn as numbers first, as a mask that is the same on any number of ranks needs."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape

RATE = 0.5


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return (call.batch_size * call.fan_out,)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    import torch

    x = make.activation(*shape)

    def forward() -> Tensor:
        drawn = torch.rand(shape, device=x.device)
        return x * (drawn >= RATE).to(x.dtype).mul_(1.0 / (1.0 - RATE))

    return Call(forward, (x,), "torch rand, mask and product")
