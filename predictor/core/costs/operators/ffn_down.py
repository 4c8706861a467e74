"""FFN down-projection: (tokens, ffn / tensor_parallel) @ (ffn / tensor_parallel, hidden)."""

from predictor.core.costs.operator import linear

OPERATOR = linear(
    "ffn_down",
    source="2·m·k·n FLOP forward, twice that backward; row-parallel",
    layer_shape=lambda call: (call.tokens, call.ffn_width, call.hidden_size),
)
