"""FlashAttention-2 with key-value heads shared by several query heads, or with a sliding window."""

from math import ceil

from predictor.core.costs.layer_call import LayerCall
from predictor.core.costs.operator import Direction, Operator, Shape, StandIn
from predictor.core.costs.operators.flash_attention import BACKWARD_TO_FORWARD_FLOPS, BLOCK_ROWS, padded_head_dim
from predictor.core.costs.work import ATTENTION_PRECISIONS, ELEMENT_BYTES, Work, whole_waves


def pairs(length: int, causal: bool, window: int) -> int:
    """Return the (query, key) pairs of one head that attention needs; a window of 0 is none, and needs causal."""
    if not causal:
        return length * length
    seen = min(window, length) if window else length
    return seen * length - seen * (seen - 1) // 2


def computed_share(length: int, causal: bool, window: int) -> float:
    """Return the share of a head's blocks of scores that the kernel computes: those with at least one needed pair."""
    rows = ceil(length / BLOCK_ROWS)
    if not causal:
        return 1.0
    widest = min(rows, ceil((window - 1) / BLOCK_ROWS) + 1) if window else rows
    return (widest * rows - widest * (widest - 1) / 2) / rows**2


def _work(shape: Shape, direction: Direction, num_multiprocessors: int) -> Work:
    """4·d FLOP per query head and pair forward; keys and values are read once per key-value head.

    ``extras`` as of flash_attention: FLOPs of whole blocks with the head width padded; the same in whole waves.
    """
    batch, length, heads, kv_heads, head_dim, causal, window = shape
    scale = 4.0 * batch * heads * (1.0 if direction is Direction.FORWARD else BACKWARD_TO_FORWARD_FLOPS)
    blocks = batch * heads * ceil(length / BLOCK_ROWS)
    padded = scale * length**2 * computed_share(length, bool(causal), window) * padded_head_dim(head_dim)
    # Forward: queries and output, keys and values; backward: those, and the gradient of each.
    tensors = 1 if direction is Direction.FORWARD else 2
    size_bytes = float(2 * tensors * batch * length * (heads + kv_heads) * head_dim * ELEMENT_BYTES)
    needed = scale * pairs(length, bool(causal), window) * head_dim
    return Work(needed, size_bytes, (padded, padded * whole_waves(blocks, num_multiprocessors) / blocks))


def _stand_in(shape: Shape, direction: Direction, num_multiprocessors: int) -> StandIn:
    """FlashAttention over as many query heads, times the share of blocks that the window leaves."""
    batch, length, heads, _, head_dim, causal, window = shape
    whole = computed_share(length, bool(causal), 0)
    times = computed_share(length, bool(causal), window) / whole
    return StandIn("flash_attention", (batch, length, heads, head_dim, causal), times)


def _layer_shape(call: LayerCall) -> Shape:
    heads = call.heads_per_rank, call.key_value_heads_per_rank
    return call.micro_batch_size, call.sequence_per_rank, *heads, call.head_dim, int(call.causal), call.window


OPERATOR = Operator(
    name="grouped_query_attention",
    dimensions=("batch", "sequence", "heads", "kv_heads", "head_dim", "causal", "window"),
    work=_work,
    layer_shape=_layer_shape,
    extra_kinds=("flops", "flops"),
    tabled_in=ATTENTION_PRECISIONS,
    fused_attention=True,
    stand_in=_stand_in,
    source="Ainslie et al. 2023, arXiv:2305.13245; window: Beltagy et al. 2020, arXiv:2004.05150; Dao 2023, 2307.08691",
)
