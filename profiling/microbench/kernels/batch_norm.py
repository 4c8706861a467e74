"""Batch normalisation in training, step by step as the trainer runs it, because it sums statistics over ranks."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape

EPSILON, FACTOR = 1e-5, 0.1


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.batch_size, call.fan_out


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (rows, width)."""
    import torch

    rows, width = shape
    x = make.activation(rows, width)
    gamma, beta = make.weight(1, width), make.weight(1, width)
    running_mean, running_variance = (make.constant(width, dtype=torch.float32) for _ in range(2))

    def forward() -> Tensor:
        values = x.float()
        mean = values.sum(dim=0) / rows
        variance = (values - mean).square().sum(dim=0) / rows
        with torch.no_grad():
            running_mean.lerp_(mean, FACTOR)
            running_variance.lerp_(variance, FACTOR)
        scale = gamma.float() * torch.rsqrt(variance + EPSILON)
        return torch.addcmul(beta.float(), values - mean, scale).to(x.dtype)

    return Call(forward, (x, gamma, beta), "torch eager: sums, differences and products, a kernel each")
