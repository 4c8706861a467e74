"""Copy of fp32 numbers in 16 bits, as mixed-precision weights are made; backward copies the gradients back."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import Work

BYTES_PER_ELEMENT = 6


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Four bytes on one side, two on the other."""
    return Work(0.0, float(shape[0]) * BYTES_PER_ELEMENT)


OPERATOR = Operator(
    name="dtype_cast",
    dimensions=("elements",),
    work=_work,
    byte_sizes="fixed",
    source="one read and one write per element",
)
