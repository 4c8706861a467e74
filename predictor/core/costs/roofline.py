"""The stand-in of an operator that nobody measured, from its FLOPs and bytes: the roofline of measured kernels."""

from __future__ import annotations

from predictor.core.costs.operator import Direction, Shape, StandIn, batched_gemm_work
from predictor.core.costs.stream_stand_ins import streamed

PRODUCT = "attention_values"  # measured products of small matrices, many at once
# FLOPs per byte from which products are what takes the time: peak over memory bandwidth of the data sheets, A100 153,
# H100 295, B200 281 (16 bits).
# Source: NVIDIA, data sheets of the three; Williams et al. 2009, "Roofline".
RIDGE_FLOP_PER_BYTE = 200.0


def roofline(flops: float, size_bytes: float, product: Shape, log_error: float) -> StandIn:
    """Return the donor's call of an operator without measurements; its cost is marked analytic.

    Args:
        flops: of the call.
        size_bytes: that its kernels move, in elements of ELEMENT_BYTES.
        product: (batch, m, k, n) of the products that it consists of mostly.
        log_error: half width of what is not known, as a log.
    """
    if flops < RIDGE_FLOP_PER_BYTE * size_bytes:
        return streamed(size_bytes, log_error)._replace(is_analytic=True)
    donor = batched_gemm_work(product, Direction.FORWARD, 1).flops
    return StandIn(PRODUCT, product, flops / donor, log_error, is_analytic=True)
