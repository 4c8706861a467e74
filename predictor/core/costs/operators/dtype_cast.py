"""Cast of fp32 weights to 16 bits for mixed precision; backward casts the gradients back."""

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import Work

BYTES_PER_ELEMENT = 6  # fp32 on one side, 16 bits on the other


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    return Work(0.0, float(shape[0]) * BYTES_PER_ELEMENT)


OPERATOR = Operator(
    name="dtype_cast",
    dimensions=("elements",),
    work=_work,
    byte_sizes="fixed",
    source="one read and one write per element",
)
