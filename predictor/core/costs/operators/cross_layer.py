"""One cross layer of DCN: x0 * (x @ w) + b + x over (batch, width)."""

from predictor.core.costs.stream_stand_ins import with_stream_stand_in
from predictor.core.costs.streams import over_elements

PASSES = (3, 5)  # x0 and x read, the sum written; backward the gradient read too, and those of x0 and x written
# Passes of HugeCTR's kernels, one after the other. Forward: product with w 1, with x0 2, two sums 3 and 2. Backward:
# scaling 2, sum 3, dot products 2, gradients of w and b 1 and 1, outer product 1, sum 3.
# Source: HugeCTR, src/layers/multi_cross_layer.cu, the two functors.
SEPARATE_PASSES = (8, 13)

OPERATOR = with_stream_stand_in(
    over_elements(
        name="cross_layer",
        dimensions=("batch", "width"),
        passes=PASSES,
        rows=lambda shape: shape[0],
        launches=(4, 7),
        source="Wang et al. 2017, arXiv:1708.05123, equation 3; every tensor read or written once",
    ),
    passes=(SEPARATE_PASSES[0] / PASSES[0], SEPARATE_PASSES[1] / PASSES[1]),
)
