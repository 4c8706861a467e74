"""Linear layer with bias, whose weight is stored (k, n) as HugeCTR has it."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.batch_size, call.fan_in, call.fan_out


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (m, k, n)."""
    import torch

    m, k, n = shape
    x, weight, bias = make.activation(m, k), make.weight(k, n), make.weight(1, n)
    return Call(lambda: torch.addmm(bias, x, weight), (x, weight, bias), "torch addmm")
