"""Query, key and value projection: (tokens, hidden) @ (hidden, (query + 2 key-value heads) of one rank × width)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size, call.qkv_width


OPERATOR = linear("qkv_projection", _shape, source="2·m·k·n FLOP forward, twice that backward; column-parallel")
