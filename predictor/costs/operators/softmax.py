"""Unfused attention: softmax over the keys."""

from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _scores(shape: Shape) -> int:
    batch, length = shape
    return batch * length * length


def _rows(shape: Shape) -> int:
    batch, length = shape
    return batch * length


OPERATOR = over_elements(
    name="softmax",
    dimensions=("batch", "sequence"),
    passes=(2, 3),  # read and written once; backward reads two and writes one
    elements=_scores,
    rows=_rows,
    source="one read and one write of every score; backward reads two and writes one",
)
