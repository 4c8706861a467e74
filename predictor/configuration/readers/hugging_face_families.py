"""Families of transformers that can be predicted: the defaults of their configuration classes, and what is fixed.

Source: huggingface/transformers, src/transformers/models/<family>/configuration_<family>.py, releases 4.40 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Windows(Enum):
    """Which layers of a family have a sliding window."""

    NONE = "no layer"
    ALL = "every layer, where sliding_window is set"
    UPPER = "layers from max_window_layers on, where use_sliding_window is set"
    SWITCHED = "every layer, where use_sliding_window is set"
    UNCLEAR = "releases of transformers differ"
    ALTERNATING = "every other layer, beginning with the first"
    PATTERN = "all but every sixth"


@dataclass(frozen=True, slots=True)
class Family:
    """One ``model_type``.

    Attributes:
        defaults: what the configuration class takes where a key is absent.
        fixed: keys of the section ``model`` that hold for the whole family.
        gated: the FFN has a gate.
        names: the family's own names of keys, by their usual ones.
    """

    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    windows: Windows = Windows.NONE
    gated: bool = True
    has_experts: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


def _sizes(
    vocab: int, hidden: int, ffn: int | None, layers: int, heads: int, key_value_heads: int | None = None
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
    }


_RMS = {"normalization": "rms_norm"}
_LAYER_NORM = {"normalization": "layer_norm"}
_GEMMA = {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        {
            **_sizes(50257, 768, None, 12, 12),
            "tie_word_embeddings": True,
            "hidden_act": "gelu_new",
            "attention_dropout": 0.1,
            "hidden_dropout": 0.1,
            "max_position_embeddings": 1024,
        },
        {**_LAYER_NORM, "rotary_fraction": 0.0, "biases": True},
        gated=False,
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
            "hidden_act": "activation_function",
            "attention_dropout": "attn_pdrop",
            "hidden_dropout": "resid_pdrop",
        },
    ),
    "gpt_neox": Family(
        {
            **_sizes(50432, 6144, 24576, 44, 64),
            "hidden_act": "gelu",
            "rotary_fraction": 0.25,
            "use_parallel_residual": True,
        },
        _LAYER_NORM,
        gated=False,
    ),
    "llama": Family(_sizes(32000, 4096, 11008, 32, 32), _RMS),
    "mistral": Family({**_sizes(32000, 4096, 14336, 32, 32, 8), "sliding_window": 4096}, _RMS, Windows.ALL),
    "mixtral": Family(
        {**_sizes(32000, 4096, 14336, 32, 32, 8), "num_experts": 8, "num_experts_per_tok": 2},
        _RMS,
        Windows.ALL,
        has_experts=True,
    ),
    "qwen2": Family(
        {**_sizes(151936, 4096, 22016, 32, 32, 32), "sliding_window": 4096, "max_window_layers": 28},
        {**_RMS, "biases": "qkv"},
        Windows.UPPER,
    ),
    "qwen2_moe": Family(
        {
            **_sizes(151936, 2048, 5632, 24, 16, 16),
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        _RMS,
        Windows.UNCLEAR,
        has_experts=True,
    ),
    "qwen3": Family(
        {**_sizes(151936, 4096, 22016, 32, 32, 32), "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        {**_RMS, "qk_norm": True},
        Windows.UPPER,
    ),
    "qwen3_moe": Family(
        {
            **_sizes(151936, 2048, 6144, 24, 32, 4),
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "sliding_window": 4096,
        },
        {**_RMS, "qk_norm": True},
        Windows.SWITCHED,
        has_experts=True,
    ),
    "gemma": Family({**_sizes(256000, 3072, 24576, 28, 16, 16), **_GEMMA}, _RMS),
    "gemma2": Family(
        {**_sizes(256000, 2304, 9216, 26, 8, 4), **_GEMMA, "sliding_window": 4096},
        {**_RMS, "post_norms": True},
        Windows.ALTERNATING,
    ),
    "gemma3_text": Family(
        {**_sizes(262208, 2304, 9216, 26, 8, 4), **_GEMMA, "sliding_window": 4096},
        {**_RMS, "qk_norm": True, "post_norms": True},
        Windows.PATTERN,
    ),
    "phi3": Family(_sizes(32064, 3072, 8192, 32, 32), _RMS, Windows.ALL, names={"hidden_dropout": "resid_pdrop"}),
}
