"""DLRM's interaction: products of all pairs of a sample's vectors, beside the first of them.

``features`` counts the vectors, that of the bottom network included.
"""

from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.work import ELEMENT_BYTES, Work

# On a CPU PyTorch multiplies matrices of fewer products itself, and others by a library call each.
# Source: PyTorch, aten/src/ATen/native/LinearAlgebra.cpp, bmm_out_or_baddbmm_.
LIBRARY_PRODUCTS = 400


def output_width(features: int, width: int) -> int:
    """Return the numbers of one sample: the bottom network's vector and a product per pair.

    >>> output_width(27, 128)
    479
    """
    return width + features * (features - 1) // 2


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """A product per pair; forward vectors read and results written, backward both gradients and the vectors too.

    ``extras``: bytes of the products of all vectors with all, which unfused kernels write and read; products
    where a sample has few; samples where it has more.
    """
    batch, features, width = shape
    vectors, results = batch * features * width, batch * output_width(features, width)
    flops = float(batch * features * (features - 1) * width)
    products = features**2 * width
    few = products < LIBRARY_PRODUCTS
    extras = (
        float(batch * features**2 * ELEMENT_BYTES),
        float(batch * products if few else 0),
        float(0 if few else batch),
    )
    if direction is Direction.FORWARD:
        return Work(flops, float((vectors + results) * ELEMENT_BYTES), extras)
    return Work(2.0 * flops, float((2 * vectors + results) * ELEMENT_BYTES), extras)


OPERATOR = with_stream_stand_in(
    Operator(
        name="dot_interaction",
        dimensions=("batch", "features", "width"),
        work=_work,
        extra_kinds=("bytes", "count", "count"),
        launches=(4, 6),
        source="width FLOP per pair, twice; Naumov et al. 2019, arXiv:1906.00091, section 2.1",
    )
)
