"""Unfused attention, first product: queries @ keysᵀ per head (baddbmm)."""

from predictor.core.costs.layer_call import scores
from predictor.core.costs.operator import MATMUL_EXTRAS, Operator, batched_gemm_work

OPERATOR = Operator(
    name="attention_scores",
    dimensions=("batch", "m", "k", "n"),
    work=batched_gemm_work,
    layer_shape=lambda call: (*scores(call), call.head_dim, call.sequence_per_rank),
    attention_part=True,
    extra_kinds=MATMUL_EXTRAS,
    launches=(1, 4),
    source="2·l²·d FLOP per head; Korthikanti et al. 2022, arXiv:2205.05198",
)
