"""Quantisation of an activation (forward) and of a gradient (backward) to fp8, each with its transposed copy."""

from __future__ import annotations

from microbench.call import Call, Maker
from microbench.fp8 import check_sizes, formats, quantise
from predictor.core.costs.operator import Shape


def build(shape: Shape, make: Maker) -> Call:
    """Return the call of shape (rows, columns).

    Raises:
        ValueError: a size is not a multiple that the precision needs.
    """
    check_sizes(shape, make.precision)
    x, gradient = make.constant(*shape), make.constant(*shape)
    values, gradients = formats(make.precision)
    kernel = f"torch eager, a kernel each: abs, amax, scale, divide, cast, transpose; {values}, gradient {gradients}"
    return Call(
        lambda: quantise(x, values, make.precision),
        (),
        kernel,
        backward=lambda: quantise(gradient, gradients, make.precision),
    )
