"""Multi-head latent attention's kernel in training and prefill: causal, queries and keys wider than values.

Keys and values are those that the up-projections made of the latent: each head has its own, 192 wide keys (128 and 64
with rotary embedding) and 128 wide values. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2; its model file.
"""

from math import ceil

from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.operators.flash_attention import BACKWARD_TO_FORWARD_FLOPS, BLOCK_ROWS
from predictor.core.costs.work import ATTENTION_PRECISIONS, ELEMENT_BYTES, Work, whole_waves

KEY_WIDTH, VALUE_WIDTH = 192, 128
# The width of a plain head with the same FLOPs.
MEAN_WIDTH = (KEY_WIDTH + VALUE_WIDTH) // 2


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """2·b·h·l²·(192 + 128) FLOP forward, half of them behind the diagonal; ``extras`` as of flash_attention."""
    batch, length, heads = shape
    rows = ceil(length / BLOCK_ROWS)
    scale = 1.0 if direction is Direction.FORWARD else BACKWARD_TO_FORWARD_FLOPS
    dense = 2.0 * (KEY_WIDTH + VALUE_WIDTH) * batch * heads * length * length * scale
    computed = dense * (rows + 1) / (2 * rows)
    waves = whole_waves(batch * heads * rows, num_multiprocessors) / (batch * heads * rows)
    tensors = 1 if direction is Direction.FORWARD else 2
    size_bytes = float(2 * tensors * batch * length * heads * (KEY_WIDTH + VALUE_WIDTH) * ELEMENT_BYTES)
    return Work(dense / 2.0, size_bytes, (computed, computed * waves))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """Causal FlashAttention whose heads are as wide as queries, keys and values on average."""
    batch, length, heads = shape
    return StandIn("flash_attention", (batch, length, heads, MEAN_WIDTH, 1), 1.0)


OPERATOR = Operator(
    name="mla_attention",
    dimensions=("batch", "sequence", "heads"),
    work=_work,
    layer_shape=lambda call: (call.micro_batch_size, call.sequence_per_rank, call.heads_per_rank),
    extra_kinds=("flops", "flops"),
    tabled_in=ATTENTION_PRECISIONS,
    fused_attention=True,
    stand_in=_stand_in,
    source="DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2",
)
