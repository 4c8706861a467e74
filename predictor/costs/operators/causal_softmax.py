"""Unfused attention: scale, causal mask and softmax in one kernel (ScaledUpperTriangMaskedSoftmax)."""

from predictor.costs.operator import Shape
from predictor.costs.streams import over_elements


def _scores(shape: Shape) -> int:
    batch, length = shape
    return batch * length * length


def _rows(shape: Shape) -> int:
    batch, length = shape
    return batch * length


OPERATOR = over_elements(
    name="causal_softmax",
    dimensions=("batch", "sequence"),
    # The half below the diagonal is read, everything is written; backward reads two halves. A fused kernel moves that.
    passes=(1.5, 2),
    elements=_scores,
    rows=_rows,
    source="Megatron-LM fused kernel; half of every row is masked",
)
