"""Linear layers as they are timed: through autograd in the training precision, as three separate products in fp8."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.fp8 import fp8_linear_call
from predictor.core.costs.operator import Shape
from predictor.core.costs.work import FP8_PRECISIONS


def linear_call(shape: Shape, make: Maker) -> Call:
    """Return a linear layer (m, k) @ (k, n) without bias, whose weight is stored (n, k) as torch.nn.Linear has it.

    Raises:
        ValueError: fp8 does not take the shape.
    """
    if make.precision in FP8_PRECISIONS:
        return fp8_linear_call(shape, make)
    from torch.nn.functional import linear

    m, k, n = shape
    x, weight = make.activation(m, k), make.weight(n, k)
    return Call(lambda: linear(x, weight), (x, weight), "torch linear")
