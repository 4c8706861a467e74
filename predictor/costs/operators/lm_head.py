"""Output projection onto the vocabulary: (tokens, hidden) @ (hidden, vocabulary of one rank)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import Shape, linear


def _shape(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size, call.vocab_per_rank


OPERATOR = linear("lm_head", _shape, source="2·m·k·n FLOP forward, twice that backward; vocabulary-parallel")
