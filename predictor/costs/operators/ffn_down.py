"""FFN down-projection: (tokens, ffn / tensor_parallel) @ (ffn / tensor_parallel, hidden)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_width, call.hidden_size


OPERATOR = linear("ffn_down", _shape, source="2·m·k·n FLOP forward, twice that backward; row-parallel")
