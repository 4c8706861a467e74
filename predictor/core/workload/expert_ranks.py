"""Routed experts on one rank, which other ranks may split than all else: their tokens."""

from __future__ import annotations

from predictor.core.costs.layer_call import LayerCall
from predictor.core.workload.layout import Layout


def expert_tokens(call: LayerCall, layout: Layout) -> int:
    """Return the tokens that reach a rank's experts where each token visits one and the load is even.

    The ranks that split an expert gather the tokens that each of them has.
    """
    return call.unsplit_tokens * layout.expert_split if layout.is_folded else call.tokens
