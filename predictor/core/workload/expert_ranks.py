"""What one rank sees and sums of routed experts, which may be split over other ranks than all else is."""

from __future__ import annotations

from predictor.core.workload.layer_call import LayerCall
from predictor.core.workload.layout import Layout
from predictor.core.workload.tasks import Part, Task, collective_task


def expert_tokens(call: LayerCall, layout: Layout) -> int:
    """Return the tokens that reach a rank's experts where each token visits one and the load is even.

    The ranks that split an expert gather the tokens that each of them has.
    """
    return call.unsplit_tokens * layout.expert_split if layout.is_folded else call.tokens


def expert_sums(call: LayerCall, layout: Layout, width: int, count: float) -> list[Task]:
    """Return the gathers of tokens before split experts and the scatters of what they made, for so many a token.

    Args:
        call: sizes of the layer.
        layout: of the ranks.
        width: of a token on its way.
        count: of copies of a token.

    Source: Megatron-LM core/transformer/moe/token_dispatcher.py, all-gather and reduce-scatter over the expert-tensor
    ranks.
    """
    if not count:
        return []
    shard, group = call.unsplit_tokens * width * call.element_bytes, layout.expert_tensor_group()
    return [
        *collective_task("all_gather", shard, group, Part.TENSOR_PARALLEL, count),
        *collective_task("reduce_scatter", shard, group, Part.TENSOR_PARALLEL, count),
    ]
