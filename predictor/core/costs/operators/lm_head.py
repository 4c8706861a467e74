"""Output projection onto the vocabulary: (tokens, hidden) @ (hidden, vocabulary of one rank)."""

from predictor.core.costs.operator import linear

OPERATOR = linear(
    "lm_head",
    source="2·m·k·n FLOP forward, twice that backward; vocabulary-parallel",
    layer_shape=lambda call: (call.tokens, call.hidden_size, call.vocab_per_rank),
    at_ends=True,
)
