"""Attention output projection: (tokens, hidden / tensor_parallel) @ (hidden / tensor_parallel, hidden)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size // call.tensor_parallel_size, call.hidden_size


OPERATOR = linear("attention_output", _shape, source="2·m·k·n FLOP forward, twice that backward; row-parallel")
