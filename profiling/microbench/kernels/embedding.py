"""Token embedding: look up rows; backward fills a dense gradient of the table."""

from __future__ import annotations

from microbench.call import Call, Maker
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (tokens, vocab, hidden)."""
    from torch.nn.functional import embedding

    tokens, vocab, hidden = shape
    ids, table = make.ids(tokens, vocab), make.weight(vocab, hidden)
    return Call(lambda: embedding(ids, table), (table,), "torch embedding, dense gradient")
