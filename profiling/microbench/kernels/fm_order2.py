"""Second order of a factorization machine: half of (sum over slots) squared less the sum of squares."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.batch_size, call.slots, call.width


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (batch, slots, width)."""
    vectors = make.activation(*shape)

    def forward() -> Tensor:
        total = vectors.sum(dim=1)
        return 0.5 * (total * total - (vectors * vectors).sum(dim=1))

    return Call(forward, (vectors,), "torch eager: sums and products, a kernel each")
