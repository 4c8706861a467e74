"""Quantisation to fp8 before a matrix product: amax, scale, cast, and a transposed copy.

Forward of the activation, backward of the gradient. The weight gradient reduces over tokens, and Hopper's tensor cores
take fp8 operands only with the reduced dimension last, so both layouts are needed.
"""

from predictor.core.costs.layer_call import ffn_inner
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import FP8_PRECISIONS, Work

BYTES_PER_ELEMENT = 4


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Two bytes read, one byte written twice; scales, at most a hundredth of that, are not counted."""
    rows, columns = shape
    return Work(0.0, float(rows * columns * BYTES_PER_ELEMENT))


OPERATOR = Operator(
    name="fp8_quantize",
    dimensions=("rows", "columns"),
    work=_work,
    layer_shape=ffn_inner,  # the widest activation that a linear layer takes, that of the FFN's second matrix
    byte_sizes="fixed",
    precisions=FP8_PRECISIONS,
    launches=(8, 8),  # with one scale a tensor
    source="one read of 16 bits and two writes of 8 bits per element, as if one kernel did it all",
)
