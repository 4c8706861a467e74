"""Query, key and value projection: (tokens, hidden) @ (hidden, (query + 2 key-value heads) of one rank × width)."""

from predictor.core.costs.operator import linear

OPERATOR = linear(
    "qkv_projection",
    source="2·m·k·n FLOP forward, twice that backward; column-parallel",
    layer_shape=lambda call: (call.tokens, call.hidden_size, call.qkv_width),
)
