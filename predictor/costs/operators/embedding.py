"""Vocabulary-parallel token embedding: look up (tokens,) in (vocabulary of one rank, hidden)."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Rows are copied; backward also clears and fills a dense gradient of the whole table."""
    tokens, vocab, hidden = shape
    rows = 2.0 * tokens * hidden * ELEMENT_BYTES
    if direction is Direction.FORWARD:
        return Work(0.0, rows, (rows, float(tokens)))
    return Work(0.0, rows + vocab * hidden * ELEMENT_BYTES, (rows, float(tokens)))


OPERATOR = Operator(
    name="embedding",
    dimensions=("tokens", "vocab", "hidden"),
    work=_work,
    extra_kinds=("bytes", "count"),
    launches=(1, 2),
    source="rows copied once; dense weight gradient written backward",
)
