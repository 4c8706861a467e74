"""One cross layer of DCN: x0 * (x @ w) + b + x."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.recommender_call import DENSE_FEATURES, RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.batch_size, DENSE_FEATURES + call.slots * call.width


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, width)."""
    import torch

    batch, width = shape
    first, x = make.activation(batch, width), make.activation(batch, width)
    weight, bias = make.weight(1, width), make.weight(1, width)
    return Call(
        lambda: torch.addcmul(x + bias, first, x @ weight.t()), (first, x, weight, bias), "torch mm, add and addcmul"
    )
