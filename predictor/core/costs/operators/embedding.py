"""Vocabulary-parallel token embedding: look up (tokens,) in (vocabulary of one rank, hidden)."""

from math import expm1, log1p

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import ELEMENT_BYTES, Work


def distinct_rows(tokens: int, vocab: int) -> float:
    """Return the expected number of distinct rows looked up by uniform ids: vocab · (1 − (1 − 1 / vocab)^tokens).

    An upper bound: natural language repeats its tokens more often, and a vocabulary-parallel rank sees only its share.
    """
    return -vocab * expm1(tokens * log1p(-1.0 / vocab)) if vocab > 1 else 1.0


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Forward reads each distinct row once and writes one row per token; backward writes a dense gradient.

    ``extras``: bytes of one read and one write per token, cached or not; tokens.
    """
    tokens, vocab, hidden = shape
    row_bytes = float(hidden * ELEMENT_BYTES)
    table_rows = distinct_rows(tokens, vocab) if direction is Direction.FORWARD else vocab
    return Work(0.0, (tokens + table_rows) * row_bytes, (2.0 * tokens * row_bytes, float(tokens)))


OPERATOR = Operator(
    name="embedding",
    dimensions=("tokens", "vocab", "hidden"),
    work=_work,
    layer_shape=lambda call: (call.tokens, call.vocab_per_rank, call.hidden_size),
    at_ends=True,
    extra_kinds=("bytes", "count"),
    launches=(1, 2),
    source="distinct rows of uniform ids read and every row written; dense weight gradient written backward",
)
