"""Fused Adam step over a list of fp32 tensors (parameters, gradients, two moments)."""

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import Work

# fp32 parameter, gradient and two moments read; parameter and moments written.
BYTES_PER_PARAMETER = 28


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """Stream 28 bytes per parameter; every tensor of the list adds bookkeeping on the host."""
    parameters, tensors = shape
    return Work(0.0, float(parameters) * BYTES_PER_PARAMETER, (float(tensors),))


OPERATOR = Operator(
    name="optimizer_step",
    dimensions=("parameters", "tensors"),
    work=_work,
    directions=(Direction.FORWARD,),
    extra_kinds=("count",),
    source="Kingma and Ba 2014, arXiv:1412.6980; fused multi-tensor kernel in fp32",
)
