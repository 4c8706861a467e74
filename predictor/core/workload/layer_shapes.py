"""The shape of each operator in a transformer, from the sizes of one layer call.

Operators know their dimensions and their work. How a transformer's sizes become those dimensions is defined here alone,
for predictions, sweeps and imported tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from predictor.core.costs.operator import Operator, Shape
from predictor.core.workload.layer_call import LayerCall


def _residual_stream(call: LayerCall) -> Shape:
    return call.unsplit_tokens, call.hidden_size


def _ffn_inner(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_width


def _scores(call: LayerCall) -> Shape:
    """Return the rows of all heads of one rank; each is as long as there are rows in one head."""
    return call.micro_batch_size * call.heads_per_rank, call.sequence_per_rank


def _embedding(call: LayerCall) -> Shape:
    return call.tokens, call.vocab_per_rank, call.hidden_size


def _qkv_projection(call: LayerCall) -> Shape:
    """(tokens, hidden) @ (hidden, (query + 2 key-value heads) of one rank × width)."""
    return call.tokens, call.hidden_size, call.qkv_width


def _attention_output(call: LayerCall) -> Shape:
    return call.tokens, call.attention_width, call.hidden_size


def _ffn_up(call: LayerCall) -> Shape:
    """(tokens, hidden) @ (hidden, ffn / tensor_parallel), twice as wide where it makes a gate too."""
    return call.tokens, call.hidden_size, call.ffn_width * (2 if call.gated else 1)


def _ffn_down(call: LayerCall) -> Shape:
    return call.tokens, call.ffn_width, call.hidden_size


def _lm_head(call: LayerCall) -> Shape:
    return call.tokens, call.hidden_size, call.vocab_per_rank


def _rope(call: LayerCall) -> Shape:
    heads = (call.heads_per_rank + call.key_value_heads_per_rank + 1) // 2
    return call.tokens, heads, int(call.head_dim * call.rotary_fraction)


def _flash_attention(call: LayerCall) -> Shape:
    return call.micro_batch_size, call.sequence_per_rank, call.heads_per_rank, call.head_dim, int(call.causal)


def _grouped_query_attention(call: LayerCall) -> Shape:
    heads = call.heads_per_rank, call.key_value_heads_per_rank
    return call.micro_batch_size, call.sequence_per_rank, *heads, call.head_dim, int(call.causal), call.window


def _mla_attention(call: LayerCall) -> Shape:
    return call.micro_batch_size, call.sequence_per_rank, call.heads_per_rank


def _attention_scores(call: LayerCall) -> Shape:
    batch = call.micro_batch_size * call.heads_per_rank
    return batch, call.sequence_per_rank, call.head_dim, call.sequence_per_rank


def _attention_values(call: LayerCall) -> Shape:
    batch = call.micro_batch_size * call.heads_per_rank
    return batch, call.sequence_per_rank, call.sequence_per_rank, call.head_dim


def _narrow_logits(call: LayerCall) -> Shape:
    return call.tokens, call.vocab_per_rank


def _logits(call: LayerCall) -> Shape:
    return call.tokens, call.vocab_per_rank, call.logit_bytes


# By operator; operators that are missing run at most once per step.
LAYER_SHAPES: Mapping[str, Callable[[LayerCall], Shape]] = MappingProxyType(
    {
        "attention_mask": _scores,
        "attention_output": _attention_output,
        "attention_scores": _attention_scores,
        "attention_values": _attention_values,
        "bias_dropout_add": _residual_stream,
        "causal_softmax": _scores,
        "cross_entropy": _logits,
        "embedding": _embedding,
        "ffn_down": _ffn_down,
        "ffn_up": _ffn_up,
        "flash_attention": _flash_attention,
        "fp8_quantize": _ffn_inner,  # the widest activation that a linear layer takes, that of the FFN's second matrix
        "fused_cross_entropy": _narrow_logits,
        "fused_rms_norm": _residual_stream,
        "fused_rope": _rope,
        "fused_swiglu": _ffn_inner,
        "gelu": _ffn_inner,
        "grouped_query_attention": _grouped_query_attention,
        "layer_norm": _residual_stream,
        "lm_head": _lm_head,
        "mla_attention": _mla_attention,
        "qkv_projection": _qkv_projection,
        "residual_add": _residual_stream,
        "rms_norm": _residual_stream,
        "rope": _rope,
        "softmax": _scores,
        "swiglu": _ffn_inner,
        "torch_cross_entropy": _logits,
    }
)


def calls(operator: Operator, call: LayerCall) -> bool:
    """Return whether a layer of these sizes, where it names an operator, calls just that one.

    Only where heads are shared or a window hides keys is it grouped-query attention that runs, else flash attention.
    """
    if operator.name != "grouped_query_attention":
        return True
    shared = call.key_value_heads_per_rank < call.heads_per_rank
    return shared or 0 < call.window < call.sequence_per_rank
