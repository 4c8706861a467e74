"""Query, key and value projection: (tokens, hidden) @ (hidden, 3·hidden / tensor_parallel)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size, 3 * call.hidden_size // call.tensor_parallel_size


OPERATOR = linear("qkv_projection", _shape, source="2·m·k·n FLOP forward, twice that backward; column-parallel")
