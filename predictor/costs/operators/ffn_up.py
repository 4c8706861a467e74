"""FFN up-projection: (tokens, hidden) @ (hidden, ffn / tensor_parallel), twice as wide where it makes a gate too."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size, call.ffn_width * (2 if call.gated else 1)


OPERATOR = linear("ffn_up", _shape, source="2·m·k·n FLOP forward, twice that backward; column-parallel")
