"""FlashAttention-2, exact attention in one kernel; causal or not."""

from math import ceil

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.work import ATTENTION_PRECISIONS, ELEMENT_BYTES, Work, whole_waves

# Rows of queries per thread block, and the head widths that kernels are compiled for; other widths are padded up.
# Source: flash-attn 2, csrc/flash_attn (run_mha_fwd_hdim*), kBlockM of the forward kernels.
BLOCK_ROWS = 128
HEAD_DIMS = (32, 64, 96, 128, 160, 192, 224, 256)

# Two products forward; five backward (scores again, and four gradients). Source: Dao 2023, arXiv:2307.08691, section
# 4.1.
BACKWARD_TO_FORWARD_FLOPS = 2.5


def padded_head_dim(head_dim: int) -> int:
    """Return the head width that the kernel computes with."""
    return next((width for width in HEAD_DIMS if width >= head_dim), ceil(head_dim / 64) * 64)


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """4·b·h·l²·d FLOP forward; causal skips the blocks of keys above the diagonal.

    ``extras``: FLOPs with the head width padded; the same rounded up to whole waves of thread blocks.
    """
    batch, length, heads, head_dim, causal = shape
    rows = ceil(length / BLOCK_ROWS)
    computed = (rows + 1) / (2 * rows) if causal else 1.0
    needed = 0.5 if causal else 1.0
    scale = 1.0 if direction is Direction.FORWARD else BACKWARD_TO_FORWARD_FLOPS
    dense = 4.0 * batch * heads * length * length * scale
    waves = whole_waves(batch * heads * rows, num_multiprocessors) / (batch * heads * rows)
    padded = dense * padded_head_dim(head_dim) * computed
    tensors = 4 if direction is Direction.FORWARD else 8
    size_bytes = float(tensors * batch * length * heads * head_dim * ELEMENT_BYTES)
    return Work(dense * head_dim * needed, size_bytes, (padded, padded * waves))


def _layer_shape(call: LayerCall) -> Shape:
    return call.micro_batch_size, call.sequence_per_rank, call.heads_per_rank, call.head_dim, int(call.causal)


OPERATOR = Operator(
    name="flash_attention",
    dimensions=("batch", "sequence", "heads", "head_dim", "causal"),
    work=_work,
    layer_shape=_layer_shape,
    extra_kinds=("flops", "flops"),
    tabled_in=ATTENTION_PRECISIONS,
    fused_attention=True,
    source="Dao 2023, arXiv:2307.08691",
)
