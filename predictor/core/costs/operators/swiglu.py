"""SwiGLU on the FFN's inner activations of one rank: SiLU of the gate times the other half."""

from dataclasses import replace

from predictor.core.costs.layer_call import ffn_inner
from predictor.core.costs.operator import Direction, Shape, StandIn
from predictor.core.costs.streams import over_elements

# Reads and writes per element of separate SiLU and product kernels: 2 and 3 forward, 3 and 5 backward.
UNFUSED_PASSES = (5, 8)
RESIDUAL_ADD_PASSES = 3


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A residual addition of the same size, in proportion to the bytes."""
    passes = UNFUSED_PASSES[direction is Direction.BACKWARD]
    return StandIn("residual_add", shape, passes / RESIDUAL_ADD_PASSES)


OPERATOR = replace(
    over_elements(
        name="swiglu",
        dimensions=("tokens", "width"),
        layer_shape=ffn_inner,
        passes=(3, 5),  # at least: two reads and one write; backward reads the gradient too and writes two
        launches=(2, 4),
        source="Shazeer 2020, arXiv:2002.05202; element-wise, unfused",
    ),
    stand_in=_stand_in,
)
