"""Features of a model beyond a plain GPT or LLaMA, for code that runs or writes no more than that."""

from __future__ import annotations

from dataclasses import fields

from predictor.core.workload.transformer import Transformer

# Fields of a plain model, which such code looks at one by one.
BASIC_FIELDS = frozenset(
    {
        *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "sequence_length", "vocab_size"),
        *("num_key_value_heads", "head_width", "activation", "sliding_window", "sliding_window_layers"),
        *("normalization", "attention", "causal", "rotary_fraction", "num_position_embeddings", "parallel_residual"),
        *("biases", "qk_norm", "post_norms", "attention_dropout", "hidden_dropout", "fused_side_kernels"),
        *("fused_rope", "tied_embeddings", "loss", "experts", "layer_operators"),
        *("forward_all_reduces", "backward_all_reduces"),
    }
)


def special_features(model: Transformer) -> list[str]:
    """Return the fields that a plain model does not have and this one does."""
    return [
        field.name
        for field in fields(model)
        if field.name not in BASIC_FIELDS and getattr(model, field.name) != field.default
    ]
