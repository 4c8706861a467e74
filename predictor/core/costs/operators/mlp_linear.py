"""Linear layer of a recommender's network, with bias: (m, k) @ (k, n) + (n,).

A regressor of its own: batches are large and matrices small, so that it is bound by memory where a transformer's
linear layers are not.
"""

from math import ceil

from predictor.core.costs.operator import MATMUL_EXTRAS, Direction, Operator, Shape, StandIn, gemm_work
from predictor.core.costs.work import ELEMENT_BYTES, Work

# Columns that a processor's kernels compute at once: narrower matrices leave registers idle, as the last layers' do.
COLUMNS = 64


def padded_flops(m: int, k: int, n: int) -> float:
    """Return the FLOPs of a product with its columns rounded up to whole COLUMNS; a vector is not rounded."""
    return 2.0 * m * k * (n if n == 1 else ceil(n / COLUMNS) * COLUMNS)


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """The products; backward the sum of the output's gradient too, that of the bias.

    ``extras`` end with the FLOPs of whole columns, and with the bytes of the output, to which the bias is added, or
    whose gradient is summed.
    """
    m, k, n = shape
    output_bytes = float(m * n * ELEMENT_BYTES)
    flops, size_bytes, tiled = gemm_work(shape, direction, num_multiprocessors)
    if direction is Direction.FORWARD:
        return Work(flops, size_bytes, (*tiled, padded_flops(m, k, n), output_bytes))
    padded = padded_flops(m, n, k) + padded_flops(k, m, n)
    return Work(flops, size_bytes + output_bytes, (*tiled, padded, output_bytes))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A transformer's linear layer of the same shape; the bias rides along with the product."""
    return StandIn("ffn_up", shape, 1.0)


OPERATOR = Operator(
    name="mlp_linear",
    dimensions=("m", "k", "n"),
    work=_work,
    extra_kinds=(*MATMUL_EXTRAS, "flops", "bytes"),
    launches=(1, 4),
    stand_in=_stand_in,
    source="2·m·k·n FLOP forward, twice that backward",
)
