"""Pooled embedding lookup, as the trainer runs it behind TorchRec's exchange: keys to rows, rows in order, sums."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.lookups import SPREAD, even_offsets, keys, slots_of
from microbench.recommender_call import RecommenderCall
from predictor.core.costs.operator import Shape

FIRST_ROW = 1  # of a table among the rows of all tables of one width


def of_recommender(call: RecommenderCall) -> Shape:
    """Return the shape in a recommender of a sweep."""
    return call.bags, call.lookups, call.rows, call.width


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (bags, lookups, rows, width); the table is fp32 in every precision.

    Raises:
        ValueError: so many lookups cannot touch so many rows.
    """
    import torch
    from torch.nn.functional import embedding_bag

    bags, lookups, rows, width = shape
    table = make.constant(FIRST_ROW + SPREAD * rows, width, dtype=torch.float32)
    row_of_key = torch.arange(SPREAD * rows, dtype=torch.int32, device=make.device)
    looked_up, offsets, slots = keys(lookups, rows, make), even_offsets(bags, lookups, make), slots_of(bags)
    hotness = lookups // bags if lookups % bags == 0 else 1
    if lookups % (slots * hotness):
        slots = 1

    def forward() -> Tensor:
        torch.aminmax(looked_up)  # decides whether a dense index of keys can hold them
        found = row_of_key.index_select(0, looked_up)
        (found < 0).any()  # whether a key has no row
        by_sample = (found + FIRST_ROW).view(slots, -1, hotness).transpose(0, 1).reshape(-1)
        return embedding_bag(by_sample, table, offsets, mode="sum", include_last_offset=True)

    return Call(forward, (), "torch index_select of rows by key, embedding_bag")
