"""Copy of a tensor into a new one; backward copies the gradient."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return (call.batch_size * call.fan_out,)


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (elements,)."""
    x, gradient = make.constant(*shape), make.constant(*shape)
    return Call(lambda: x.clone(), (), "torch clone", backward=lambda: gradient.clone())
