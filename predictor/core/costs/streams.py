"""Memory-bound operators, defined by the bytes per element in each direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from predictor.core.costs.layer_call import LayerCall, scores
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import ELEMENT_BYTES, Work

PARAMETER_LIST = ("parameters", "tensors")
# Least bytes per parameter of Adam in fp32: parameter, gradient, two moments read; parameter, two moments written.
ADAM_BYTES = 28


def over_elements(
    name: str,
    dimensions: tuple[str, ...],
    passes: tuple[float, float],
    source: str,
    elements: Callable[[Shape], int] = prod,
    rows: Callable[[Shape], int] | None = None,
    launches: tuple[int, int] = (1, 1),
    layer_shape: Callable[[LayerCall], Shape] | None = None,
    at_ends: bool = False,
    where_measured: bool = False,
) -> Operator:
    """Return a memory-bound operator.

    ``passes`` are the least reads and writes per element, forward and backward; ``elements`` counts those of a shape,
    ``rows`` its reductions, each of which adds bookkeeping. The other arguments are ``Operator``'s.
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
        layer_shape=layer_shape,
        at_ends=at_ends,
        where_measured=where_measured,
    )


def over_scores(name: str, passes: tuple[float, float], source: str) -> Operator:
    """Return an operator on the attention scores of one head; every row of scores is reduced."""
    elements = over_elements(
        name,
        ("batch", "sequence"),
        passes,
        source,
        lambda shape: shape[0] * shape[1] ** 2,
        rows=prod,
        layer_shape=scores,
    )
    return replace(elements, attention_part=True)


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
        bookkeeping=("tensors",),
        byte_sizes="fixed",
        source=source,
    )
