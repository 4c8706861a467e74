"""Shapes of operators that fuse what layers otherwise call one by one, from the sizes of a drawn layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from predictor.costs.operator import Shape
from predictor.workloads.layer_call import LayerCall

# A small mixture: eight experts and two choices a token, all on one rank. Source: Jiang et al. 2024, arXiv:2401.04088.
EXPERTS, CHOICES = 8, 2
BALANCED = 0


def _expert_mlp(call: LayerCall) -> Shape:
    sizes = call.tokens, call.hidden_size, call.ffn_width
    return *sizes, CHOICES, EXPERTS, EXPERTS, BALANCED, int(call.gated)


def _mla_attention(call: LayerCall) -> Shape:
    return call.micro_batch_size, call.sequence_length, call.heads_per_rank


FUSED_SHAPES: Mapping[str, Callable[[LayerCall], Shape]] = MappingProxyType(
    {"expert_mlp": _expert_mlp, "mla_attention": _mla_attention}
)
