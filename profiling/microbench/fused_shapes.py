"""Shapes of operators that fuse or split what layers call as one by name, from the sizes of a drawn layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from predictor.core.costs.operator import DATA_GRADIENT, FP32_WEIGHT_GRADIENT, WEIGHT_GRADIENT, Shape, linear_gradients
from predictor.core.workload.layer_call import LayerCall
from predictor.core.workload.layer_shapes import LAYER_SHAPES

# A small mixture: eight experts and two choices a token, all on one rank. Source: Jiang et al. 2024, arXiv:2401.04088.
EXPERTS, CHOICES = 8, 2
BALANCED = 0
SCAN_HEAD, SCAN_STATE, SCAN_CHUNK = 64, 128, 256
DELTA_HEAD, DELTA_CHUNK = 128, 64
# Chunks follow one another, 80 launches each backward: more than these do not fit into a GPU's queue of about 1,022, so
# that the host would be timed and not the kernels. A longer sequence is as many times as long.
DELTA_CHUNKS = 12
LINEARS = ("qkv_projection", "attention_output", "ffn_up", "ffn_down", "lm_head")


def _gradients(call: LayerCall) -> tuple[Shape, Shape]:
    """Return the gradient products of one of a model's linear layers, of each in turn."""
    name = LINEARS[(call.sequence_length + call.micro_batch_size) % len(LINEARS)]
    return linear_gradients(LAYER_SHAPES[name](call))


def _expert_mlp(call: LayerCall) -> Shape:
    sizes = call.tokens, call.hidden_size, call.ffn_width
    return *sizes, CHOICES, EXPERTS, EXPERTS, BALANCED, int(call.gated)


def _ssd_scan(call: LayerCall) -> Shape:
    """An inner width of twice the hidden one in heads of 64, states of 128, one group. Source: state-spaces/mamba."""
    heads = max(1, 2 * call.hidden_size // SCAN_HEAD // call.tensor_parallel_size)
    return call.micro_batch_size, call.sequence_length, heads, SCAN_HEAD, SCAN_STATE, 1, SCAN_CHUNK


def _gated_delta_rule(call: LayerCall) -> Shape:
    """Value heads of 128 as wide together as the hidden dimension. Source: transformers, qwen3_next."""
    heads = max(1, call.hidden_size // DELTA_HEAD // call.tensor_parallel_size)
    length = min(call.sequence_length, DELTA_CHUNKS * DELTA_CHUNK)
    return call.micro_batch_size, length, heads, DELTA_HEAD, DELTA_HEAD, DELTA_CHUNK


FUSED_SHAPES: Mapping[str, Callable[[LayerCall], Shape]] = MappingProxyType(
    {
        "expert_mlp": _expert_mlp,
        "gated_delta_rule": _gated_delta_rule,
        "ssd_scan": _ssd_scan,
        DATA_GRADIENT: lambda call: _gradients(call)[0],
        WEIGHT_GRADIENT: lambda call: _gradients(call)[1],
        FP32_WEIGHT_GRADIENT: lambda call: _gradients(call)[1],
    }
)
