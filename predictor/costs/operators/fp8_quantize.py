"""Activation or gradient to fp8 before its matrix products: amax, scale, cast, and a transposed copy.

Forward is the activation's, backward the gradient's. The weight gradient sums over tokens, and Hopper's tensor cores
take fp8 operands only with the summed size last, so each exists as it is and transposed.
"""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import FP8_PRECISIONS, Work

BYTES_PER_ELEMENT = 4


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Two bytes read, and one written twice; scales are a hundredth of that at most, and are not counted."""
    rows, columns = shape
    return Work(0.0, float(rows * columns * BYTES_PER_ELEMENT))


OPERATOR = Operator(
    name="fp8_quantize",
    dimensions=("rows", "columns"),
    work=_work,
    byte_sizes="fixed",
    precisions=FP8_PRECISIONS,
    launches=(8, 8),  # with one scale a tensor
    source="one read of 16 bits and two writes of 8 bits per element, as if one kernel did it all",
)
