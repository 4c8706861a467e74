"""Attention output projection: (tokens, heads of one rank × head width) @ (the same, hidden)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.attention_width, call.hidden_size


OPERATOR = linear("attention_output", _shape, source="2·m·k·n FLOP forward, twice that backward; row-parallel")
