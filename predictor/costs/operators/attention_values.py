"""Unfused attention, second product: probabilities @ values per head (bmm)."""

from predictor.costs.layer_call import LayerCall
from predictor.costs.operator import MATMUL_EXTRAS, Operator, Shape, batched_gemm_work


def _shape(call: LayerCall) -> Shape:
    batch = call.micro_batch_size * call.heads_per_rank
    return batch, call.sequence_per_rank, call.sequence_per_rank, call.head_dim


OPERATOR = Operator(
    name="attention_values",
    dimensions=("batch", "m", "k", "n"),
    work=batched_gemm_work,
    shape=_shape,
    extra_kinds=MATMUL_EXTRAS,
    launches=(1, 2),
    source="2·l²·d FLOP per head; Korthikanti et al. 2022, arXiv:2205.05198",
)
