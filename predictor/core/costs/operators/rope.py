"""Rotary position embedding on queries and keys, written as single PyTorch operations."""

from predictor.core.costs.layer_call import rotated
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import ELEMENT_BYTES, Work


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Queries and keys are each read and written once; ``heads`` is the mean of both where keys have fewer."""
    tokens, heads, rotary_dim = shape
    elements = 2.0 * tokens * heads * rotary_dim
    return Work(0.0, 2.0 * elements * ELEMENT_BYTES, (float(tokens * heads),))


OPERATOR = Operator(
    name="rope",
    dimensions=("tokens", "heads", "rotary_dim"),
    work=_work,
    layer_shape=rotated,
    extra_kinds=("count",),
    launches=(10, 18),
    source="Su et al. 2021, arXiv:2104.09864; unfused",
)
