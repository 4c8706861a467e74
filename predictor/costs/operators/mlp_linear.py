"""Linear layer of a recommender's network, with bias: (m, k) @ (k, n) + (n,).

A regressor of its own: batches are large and matrices small, so that it is bound by memory where a transformer's
linear layers are not.
"""

from dataclasses import replace

from predictor.costs.operator import Direction, Shape, StandIn, linear


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """A transformer's linear layer of the same shape; the bias rides along with the product."""
    return StandIn("ffn_up", shape, 1.0)


OPERATOR = replace(
    linear("mlp_linear", source="2·m·k·n FLOP forward, twice that backward"),
    family="",
    launches=(1, 4),
    stand_in=_stand_in,
)
