"""Linear layer of a recommender's network, with bias: (m, k) @ (k, n) + (n,)."""

from dataclasses import replace

from predictor.costs.operator import linear

OPERATOR = replace(
    linear("mlp_linear", source="2·m·k·n FLOP forward, twice that backward; the bias rides along"),
    launches=(1, 4),
    is_member=False,
)
