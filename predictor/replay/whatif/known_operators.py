"""Traced operators as the predictor's own: which of its operators a call is, with the shape that its inputs tell.

Source of the argument orders: PyTorch, aten/src/ATen/native/native_functions.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TracedOperator
from predictor.replay.precision.operator_config import own_operators
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.work_of_shapes import WorkKind, shape_work

Shapes = tuple[tuple[int, ...], ...]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
# Names of PyTorch, which a trace has.
DTYPES = {"float": Precision.FP32, "c10::Half": Precision.FP16, "c10::BFloat16": Precision.BF16}
CONVOLUTION_BACKWARD = "aten::convolution_backward"


class KnownCall(NamedTuple):
    """A call of one of the predictor's operators."""

    operator: Operator
    direction: Direction
    shape: Shape


def _matrices(first: int) -> Callable[[Shapes], Shape | None]:
    """Return the reader of (m, k) @ (k, n), the first of which is the input with this number."""

    def read(shapes: Shapes) -> Shape | None:
        left, right = shapes[first], shapes[first + 1]
        return (left[0], left[1], right[1]) if len(left) == len(right) == 2 and left[1] == right[0] else None

    return read


def _batches(first: int) -> Callable[[Shapes], Shape | None]:
    def read(shapes: Shapes) -> Shape | None:
        left, right = shapes[first], shapes[first + 1]
        return (*left, right[2]) if len(left) == len(right) == 3 and left[2] == right[1] else None

    return read


def _linear(shapes: Shapes) -> Shape | None:
    rows, weight = shapes[0], shapes[1]
    return (prod(rows[:-1]), rows[-1], weight[0]) if len(weight) == 2 and rows and rows[-1] == weight[1] else None


def _elements(shapes: Shapes) -> Shape | None:
    return (prod(shapes[0][:-1]), shapes[0][-1]) if shapes[0] else None


def _sum(shapes: Shapes) -> Shape | None:
    return _elements(shapes) if shapes[0] == shapes[1] else None


def _scores(shapes: Shapes) -> Shape | None:
    rows = shapes[0]
    return (prod(rows[:-2]), rows[-1]) if len(rows) > 2 and rows[-1] == rows[-2] else None


def _embedding(shapes: Shapes) -> Shape | None:
    table, tokens = shapes[0], shapes[1]
    return (prod(tokens), *table) if len(table) == 2 and tokens else None


def _heads_first(shapes: Shapes) -> Shape | None:
    return _attention(shapes[0], sequence=2, heads=1)


def _sequence_first(shapes: Shapes) -> Shape | None:
    return _attention(shapes[0], sequence=1, heads=2)


def _attention(query: tuple[int, ...], sequence: int, heads: int) -> Shape | None:
    return (query[0], query[sequence], query[heads], query[3], 1) if len(query) == 4 else None


READERS: dict[str, tuple[str, Direction, Callable[[Shapes], Shape | None]]] = {
    "aten::mm": ("ffn_up", FORWARD, _matrices(0)),
    "aten::addmm": ("ffn_up", FORWARD, _matrices(1)),
    "aten::linear": ("ffn_up", FORWARD, _linear),
    "aten::bmm": ("attention_values", FORWARD, _batches(0)),
    "aten::baddbmm": ("attention_scores", FORWARD, _batches(1)),
    "aten::native_layer_norm": ("layer_norm", FORWARD, _elements),
    "aten::native_layer_norm_backward": ("layer_norm", BACKWARD, _elements),
    "aten::gelu": ("gelu", FORWARD, _elements),
    "aten::gelu_backward": ("gelu", BACKWARD, _elements),
    "aten::_softmax": ("softmax", FORWARD, _scores),
    "aten::_softmax_backward_data": ("softmax", BACKWARD, _scores),
    "aten::embedding": ("embedding", FORWARD, _embedding),
    "aten::add": ("residual_add", FORWARD, _sum),
    "aten::add_": ("residual_add", FORWARD, _sum),
    "aten::_scaled_dot_product_flash_attention": ("flash_attention", FORWARD, _heads_first),
    "aten::_scaled_dot_product_flash_attention_backward": ("flash_attention", BACKWARD, _heads_first),
    "aten::_flash_attention_forward": ("flash_attention", FORWARD, _sequence_first),
    "aten::_flash_attention_backward": ("flash_attention", BACKWARD, _sequence_first),
}


def known_call(traced: TracedOperator) -> KnownCall | None:
    """Return the predictor's operator that a call is; None where it has none, or the trace has no usable shapes."""
    reader = READERS.get(traced.name)
    if reader is None:
        return None
    name, direction, read = reader
    try:
        shape = read(traced.shapes)
    except IndexError:  # recorded with fewer inputs than the operator has
        return None
    return None if shape is None or min(shape) < 1 else KnownCall(catalogue()[name], direction, shape)


def known_around(local: LocalGraph, innermost: int) -> int:
    """Return the innermost known operator around a position, itself included; that position where none is known."""
    at = innermost
    while at != NO_OPERATOR:
        if known_call(local.operators[at]) is not None:
            return at
        at = local.operators[at].parent
    return innermost


def precision_of(traced: TracedOperator) -> Precision:
    """Return the precision of the first floating-point input; fp32 where the trace does not say."""
    return next((DTYPES[name] for name in traced.dtypes if name in DTYPES), Precision.FP32)


def traced_work(traced: TracedOperator) -> tuple[float, float] | None:
    """Return FLOPs of matrix products, and elements read and written, of a call; None where its shapes do not say.

    What is no known kind of work reads its inputs and writes as much as the largest of them.
    """
    if traced.name == CONVOLUTION_BACKWARD and len(traced.shapes) > 2:
        work = shape_work(WorkKind.CONVOLUTION, traced.shapes[1:3], prod(traced.shapes[0]))
        return None if work is None else (work.backward_flops, work.backward_elements)
    kind = own_operators().work.get(traced.name, WorkKind.ELEMENTWISE)
    work = shape_work(kind, traced.shapes)
    return None if work is None else (work.flops, work.elements)
