"""Pooled embedding lookup, as the trainer runs it behind TorchRec's exchange: keys to rows, sums, samples in order."""

from __future__ import annotations

from microbench.call import Call, Maker, Tensor
from microbench.lookups import SPREAD, even_offsets, keys, slots_of
from predictor.costs.operator import Shape

FIRST_KEY = 1  # of the table: keys count over all tables of a layer


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (bags, lookups, rows, width); the table is fp32 in every precision.

    Raises:
        ValueError: so many lookups cannot touch so many rows.
    """
    import torch
    from torch.nn.functional import embedding_bag

    bags, lookups, rows, width = shape
    table = make.constant(SPREAD * rows, width, dtype=torch.float32)
    looked_up = keys(lookups, rows, make) + FIRST_KEY
    offsets, slots = even_offsets(bags, lookups, make), slots_of(bags)

    def forward() -> Tensor:
        torch.aminmax(looked_up)  # keys outside the table are an error there
        found = (looked_up - FIRST_KEY).to(torch.int32)
        pooled = embedding_bag(found, table, offsets, mode="sum", include_last_offset=True)
        return pooled.view(slots, -1, width).transpose(0, 1).reshape(-1, slots * width)

    return Call(forward, (), "torch embedding_bag, then slots of a sample together")
