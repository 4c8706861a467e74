"""Attention output projection: (tokens, heads of one rank × head width) @ (the same, hidden)."""

from predictor.core.costs.operator import linear

OPERATOR = linear(
    "attention_output",
    source="2·m·k·n FLOP forward, twice that backward; row-parallel",
    layer_shape=lambda call: (call.tokens, call.attention_width, call.hidden_size),
)
