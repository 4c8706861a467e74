"""Cross entropy on logits of the training precision, widened in registers alone, as a compiler fuses it."""

from predictor.core.costs.streams import over_elements

OPERATOR = over_elements(
    name="fused_cross_entropy",
    dimensions=("tokens", "vocab"),
    layer_shape=lambda call: (call.tokens, call.vocab_per_rank),
    passes=(1, 2),  # at least: logits read once for maximum and sum; backward read, and their gradient written
    rows=lambda shape: shape[0],
    launches=(2, 1),  # the mean over tokens
    source="torch.nn.functional.cross_entropy fused by PyTorch torch/_inductor",
    where_measured=True,
    at_ends=True,
)
