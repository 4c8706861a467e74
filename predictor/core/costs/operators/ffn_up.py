"""FFN up-projection: (tokens, hidden) @ (hidden, ffn / tensor_parallel); twice the width with a gate."""

from predictor.core.costs.operator import linear

OPERATOR = linear(
    "ffn_up",
    source="2·m·k·n FLOP forward, twice that backward; column-parallel",
    layer_shape=lambda call: (call.tokens, call.hidden_size, call.ffn_width * (2 if call.gated else 1)),
)
