"""Rectified linear unit."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return (call.batch_size * call.fan_out,)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    from torch.nn.functional import relu

    x = make.activation(*shape)
    return Call(lambda: relu(x), (x,), "torch relu")
