"""Memory-bound element-wise operators, defined by the bytes per element in each direction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.work import ELEMENT_BYTES, Work

PARAMETER_LIST = ("parameters", "tensors")


def over_elements(
    name: str,
    dimensions: tuple[str, ...],
    passes: tuple[float, float],
    source: str,
    elements: Callable[[Shape], int] = prod,
    rows: Callable[[Shape], int] | None = None,
    launches: tuple[int, int] = (1, 1),
) -> Operator:
    """Return an operator that reads and writes each element so many times.

    Args:
        name: the operator's.
        dimensions: the operator's.
        passes: reads and writes per element, forward and backward, that no implementation can do without.
        source: the operator's.
        elements: how many a shape has.
        rows: how many reductions a shape has, where rows are reduced; each costs a little of its own.
        launches: the operator's.
    """

    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        size_bytes = float(elements(shape) * passes[direction is Direction.BACKWARD] * ELEMENT_BYTES)
        return Work(0.0, size_bytes, (float(rows(shape)),) if rows else ())

    return Operator(
        name=name,
        dimensions=dimensions,
        work=work,
        extra_kinds=("count",) if rows else (),
        launches=launches,
        source=source,
    )


def over_parameters(name: str, bytes_per_parameter: int, source: str) -> Operator:
    """Return an operator that streams a list of fp32 tensors of (parameters, tensors); each tensor adds bookkeeping."""

    def work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
        parameters, tensors = shape
        return Work(0.0, float(parameters) * bytes_per_parameter, (float(tensors),))

    return Operator(
        name=name,
        dimensions=PARAMETER_LIST,
        work=work,
        directions=(Direction.FORWARD,),
        extra_kinds=("count",),
        byte_sizes="fixed",
        source=source,
    )
