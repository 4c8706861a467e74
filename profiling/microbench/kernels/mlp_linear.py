"""Linear layer with bias, whose weight is stored (k, n) as HugeCTR has it; in fp8 without, as other linear layers."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.fp8 import fp8_linear_call
from predictor.costs.operator import Shape
from predictor.costs.work import FP8_PRECISIONS


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (m, k, n).

    Raises:
        ValueError: fp8 does not take the shape.
    """
    if make.precision in FP8_PRECISIONS:
        return fp8_linear_call(shape, make)
    import torch

    m, k, n = shape
    x, weight, bias = make.activation(m, k), make.weight(k, n), make.weight(1, n)
    return Call(lambda: torch.addmm(bias, x, weight), (x, weight, bias), "torch addmm")
