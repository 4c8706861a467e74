"""Unfused attention: scale, causal mask and softmax in one kernel (ScaledUpperTriangMaskedSoftmax)."""

from predictor.core.costs.streams import over_scores

OPERATOR = over_scores(
    "causal_softmax",
    passes=(1.5, 2),  # the half below the diagonal is read, all is written; backward reads two halves
    source="Megatron-LM fused kernel; half of every row is masked",
)
