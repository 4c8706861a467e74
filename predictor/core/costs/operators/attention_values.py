"""Unfused attention, second product: probabilities @ values per head (bmm)."""

from predictor.core.costs.layer_call import scores
from predictor.core.costs.operator import MATMUL_EXTRAS, Operator, batched_gemm_work

OPERATOR = Operator(
    name="attention_values",
    dimensions=("batch", "m", "k", "n"),
    work=batched_gemm_work,
    layer_shape=lambda call: (*scores(call), call.sequence_per_rank, call.head_dim),
    attention_part=True,
    extra_kinds=MATMUL_EXTRAS,
    launches=(1, 2),
    source="2·l²·d FLOP per head; Korthikanti et al. 2022, arXiv:2205.05198",
)
