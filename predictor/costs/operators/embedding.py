"""Vocabulary-parallel token embedding: look up (tokens,) in (vocabulary of one rank, hidden)."""

from math import expm1, log1p

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work


def distinct_rows(tokens: int, vocab: int) -> float:
    """Return how many different rows tokens ask for, expected of uniform ids: vocab · (1 − (1 − 1 / vocab)^tokens).

    A language repeats its words more often, and a rank of several sees only its own, so there are fewer then.
    """
    return -vocab * expm1(tokens * log1p(-1.0 / vocab)) if vocab > 1 else 1.0


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """One row per token is written, or its gradient read; forward a row that repeats comes from the cache.

    Backward writes a dense gradient of the whole table. ``extras``: the rows that a copy reads and writes, wherever
    they come from; tokens.
    """
    tokens, vocab, hidden = shape
    row_bytes = float(hidden * ELEMENT_BYTES)
    table_rows = distinct_rows(tokens, vocab) if direction is Direction.FORWARD else vocab
    return Work(0.0, (tokens + table_rows) * row_bytes, (2.0 * tokens * row_bytes, float(tokens)))


OPERATOR = Operator(
    name="embedding",
    dimensions=("tokens", "vocab", "hidden"),
    work=_work,
    extra_kinds=("bytes", "count"),
    launches=(1, 2),
    source="distinct rows of uniform ids read and every row written; dense weight gradient written backward",
)
