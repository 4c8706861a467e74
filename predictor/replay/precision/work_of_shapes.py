"""FLOPs and elements of a traced operator, from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import prod
from typing import NamedTuple

Shape = tuple[int, ...]
Shapes = Sequence[Shape]


class WorkKind(StrEnum):
    """Which work an operator does."""

    LINEAR = "linear"  # inputs (…, k) and (n, k), bias
    ADDMM = "addmm"  # bias, (…, m, k), (…, k, n)
    MATMUL = "matmul"  # (…, m, k), (…, k, n), vectors and broadcasting included
    CONVOLUTION = "convolution"  # (N, C, …) and (out, C / groups, …), bias
    ATTENTION = "attention"  # query, key, value: (…, length, head)
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"  # table, indices
    POOLING = "pooling"
    VIEW = "view"  # moves no elements


MULTIPLIES = frozenset({WorkKind.LINEAR, WorkKind.ADDMM, WorkKind.MATMUL, WorkKind.CONVOLUTION, WorkKind.ATTENTION})


class ShapeWork(NamedTuple):
    """Work of one operator.

    Attributes:
        flops: of matrix products forward; 0 where memory alone decides.
        elements: read and written forward.
        backward_flops: likewise of its backward.
        backward_elements: likewise.
    """

    flops: float
    elements: float
    backward_flops: float
    backward_elements: float


def shape_work(kind: WorkKind, shapes: Shapes, output_numel: int = 0) -> ShapeWork | None:
    """Return the work of an operator; None where its shapes do not say.

    Args:
        kind: of work.
        shapes: of its inputs as traced; () of what is no tensor.
        output_numel: elements of its output; 0 where unknown: what the shapes allow at most.
    """
    if kind is WorkKind.VIEW:
        return ShapeWork(0.0, 0.0, 0.0, 0.0)
    if not any(shapes):
        return None
    return _WORK[kind](shapes, output_numel)


def product_dims(kind: WorkKind, shapes: Shapes) -> tuple[int, int, int, int] | None:
    """Return batch, m, k and n of a matrix product; None of other operators and of shapes that do not fit."""
    product = _PRODUCTS.get(kind)
    return product(shapes) if product is not None else None


def output_numel(kind: WorkKind, shapes: Shapes) -> int:
    """Return the elements of an operator's output; 0 where its shapes do not say."""
    if kind in _PRODUCTS:
        dims = product_dims(kind, shapes)
        return 0 if dims is None else dims[0] * dims[1] * dims[3]
    if kind is WorkKind.EMBEDDING:
        return prod(shapes[1]) * shapes[0][-1] if len(shapes) > 1 and shapes[0] else 0
    if kind is WorkKind.ATTENTION:
        return prod(shapes[0][:-1]) * shapes[2][-1] if len(shapes) > 2 and shapes[0] and shapes[2] else 0
    if kind in {WorkKind.CONVOLUTION, WorkKind.POOLING}:
        return 0
    return max(map(_numel, shapes), default=0)


def _numel(shape: Shape) -> int:
    return prod(shape) if shape else 0


Product = tuple[int, int, int, int]  # batch, m, k, n


def _linear(shapes: Shapes) -> Product | None:
    if len(shapes) < 2 or not shapes[0] or len(shapes[1]) not in (1, 2) or shapes[0][-1] != shapes[1][-1]:
        return None
    return 1, prod(shapes[0][:-1]), shapes[0][-1], shapes[1][0] if len(shapes[1]) == 2 else 1


def _addmm(shapes: Shapes) -> Product | None:
    return _matmul(shapes[1:3])


def _matmul(shapes: Shapes) -> Product | None:
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    left = shapes[0] if len(shapes[0]) > 1 else (1, *shapes[0])
    right = shapes[1] if len(shapes[1]) > 1 else (*shapes[1], 1)
    if left[-1] != right[-2]:
        return None
    batch = 1
    for back in range(3, max(len(left), len(right)) + 1):
        batch *= max(left[-back] if back <= len(left) else 1, right[-back] if back <= len(right) else 1)
    return batch, left[-2], left[-1], right[-1]


_PRODUCTS: dict[WorkKind, Callable[[Shapes], Product | None]] = {
    WorkKind.LINEAR: _linear,
    WorkKind.ADDMM: _addmm,
    WorkKind.MATMUL: _matmul,
}


def _product_work(product: Callable[[Shapes], Product | None]) -> Callable[[Shapes, int], ShapeWork | None]:
    def work(shapes: Shapes, numel: int) -> ShapeWork | None:
        dims = product(shapes)
        if dims is None:
            return None
        batch, m, k, n = dims
        flops, elements = 2.0 * batch * m * k * n, float(batch * (m * k + k * n + m * n))
        return ShapeWork(flops, elements, 2.0 * flops, 2.0 * elements)

    return work


def _convolution(shapes: Shapes, numel: int) -> ShapeWork | None:
    """Return 2 · output · C / groups · kernel FLOP; without a known output, that of stride 1 with padding."""
    if len(shapes) < 2 or len(shapes[0]) < 3 or len(shapes[1]) != len(shapes[0]):
        return None
    data, weight = shapes[0], shapes[1]
    output = numel or data[0] * weight[0] * prod(data[2:])
    flops, elements = 2.0 * output * prod(weight[1:]), float(prod(data) + prod(weight) + output)
    return ShapeWork(flops, elements, 2.0 * flops, 2.0 * elements)


def _attention(shapes: Shapes, numel: int) -> ShapeWork | None:
    """Return the two products of attention; backward they are five, with the scores recomputed.

    Source: Dao et al., "FlashAttention", arXiv:2205.14135, section 3.
    """
    if len(shapes) < 3 or not all(len(shape) >= 3 for shape in shapes[:3]):
        return None
    query, key, value = shapes[:3]
    rows, columns = prod(query[:-1]), key[-2]
    flops = 2.0 * rows * columns * (query[-1] + value[-1])
    elements = float(prod(query) + prod(key) + prod(value) + rows * value[-1])
    return ShapeWork(flops, elements, 2.5 * flops, 2.0 * elements)


def _over_elements(forward: float, backward: float) -> Callable[[Shapes, int], ShapeWork | None]:
    """Return the work of kernels that pass over the largest input so many times, reading and writing alike."""

    def work(shapes: Shapes, numel: int) -> ShapeWork | None:
        largest = float(max(max(map(_numel, shapes)), numel))
        return ShapeWork(0.0, forward * largest, 0.0, backward * largest)

    return work


def _elementwise(shapes: Shapes, numel: int) -> ShapeWork | None:
    """Return reading every input and writing an output of the largest size, forward and backward."""
    elements = float(sum(map(_numel, shapes)) + max(max(map(_numel, shapes)), numel))
    return ShapeWork(0.0, elements, 0.0, elements)


def _embedding(shapes: Shapes, numel: int) -> ShapeWork | None:
    """Return a gather of rows; backward fills the table's dense gradient."""
    output = numel or output_numel(WorkKind.EMBEDDING, shapes)
    if not output:
        return None
    return ShapeWork(0.0, 2.0 * output, 0.0, 2.0 * output + prod(shapes[0]))


_WORK: dict[WorkKind, Callable[[Shapes, int], ShapeWork | None]] = {
    WorkKind.LINEAR: _product_work(_linear),
    WorkKind.ADDMM: _product_work(_addmm),
    WorkKind.MATMUL: _product_work(_matmul),
    WorkKind.CONVOLUTION: _convolution,
    WorkKind.ATTENTION: _attention,
    WorkKind.NORMALISATION: _over_elements(2.0, 3.0),  # as predictor/core/costs/operators/layer_norm.py
    WorkKind.SOFTMAX: _over_elements(2.0, 3.0),
    WorkKind.ELEMENTWISE: _elementwise,
    WorkKind.EMBEDDING: _embedding,
    WorkKind.POOLING: _over_elements(1.25, 1.25),  # a window of 2 × 2 leaves a quarter of the elements
}
