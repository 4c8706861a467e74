"""Unfused attention: write a large negative value where the mask forbids attention (masked_fill)."""

from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _scores(shape: Shape) -> int:
    batch, length = shape
    return batch * length * length


def _rows(shape: Shape) -> int:
    batch, length = shape
    return batch * length


OPERATOR = over_elements(
    name="attention_mask",
    dimensions=("batch", "sequence"),
    # Scores read and written; backward the gradient. The mask is one byte per score of a single head, which all others
    # share, so it is left out.
    passes=(2, 2),
    elements=_scores,
    rows=_rows,
    source="masked_fill reads and writes every score",
)
