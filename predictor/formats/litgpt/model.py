"""Models of litgpt: by name, or by the fields of its Config.

Source of names and defaults: Lightning-AI/litgpt 0.5.13, litgpt/config.py and litgpt/model.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from predictor.core.base.errors import nearest
from predictor.core.base.read_yaml import load_foreign
from predictor.formats.fields import Fields

FILE = Path(__file__).resolve().parent / "models.yaml"
ACTIVATIONS = {"GptNeoxMLP": "gelu", "LLaMAMLP": "swiglu", "GemmaMLP": "geglu", "LLaMAMoE": "swiglu"}
NORMS = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}


@cache
def named() -> dict[str, dict[str, Any]]:
    """Return the fields of litgpt's models by their name in lower case."""
    return {
        name.lower(): group["config"]
        for group in load_foreign(FILE.read_text(encoding="utf-8"))
        for name in group["names"]
    }


def fields_of(holder: Fields, key: str, name: str) -> dict[str, Any]:
    """Return the fields of a model by its name, the organisation in front or not.

    Raises:
        ConfigError: litgpt has no model of that name, or one that is not modelled.
    """
    bare = name.rstrip("/").rpartition("/")[2].lower()
    if bare in named():
        return named()[bare]
    raise holder.error(
        key, f"no model of litgpt has this name.{nearest(bare, named())} Give its sizes as model_config, or a preset"
    )


def model_section(config: Fields) -> dict[str, Any]:
    """Return the section ``model`` without its sequence length."""
    heads, hidden = config.whole("n_head", 32), config.whole("n_embd", 4096)
    mlp = config.text("mlp_class_name", "GptNeoxMLP", ACTIVATIONS)
    vocabulary, multiple = config.whole("vocab_size", 50254), config.whole("padding_multiple", 512)
    norm = NORMS[config.text("norm_class_name", "LayerNorm", NORMS)]
    keys: dict[str, Any] = {
        "num_layers": config.whole("n_layer", 16),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": config.whole("n_query_groups", heads),
        "ffn_hidden_size": config.whole("intermediate_size", 4 * hidden),
        "vocab_size": config.whole("padded_vocab_size", -(-vocabulary // multiple) * multiple),
        "activation": ACTIVATIONS[mlp],
        "normalization": norm,
        "biases": _biases(config),
        "lm_head_bias": config.switch("lm_head_bias"),
        "tied_embeddings": False,
        "parallel_residual": config.switch("parallel_residual", True),
        "shared_input_norm": config.switch("shared_attention_norm"),
        "loss": "torch",
    }
    rotary = config.real("rotary_percentage", 0.25)
    keys |= {"rotary_fraction": rotary} | ({} if rotary else {"positions": "none"})
    size = config.optional_whole("head_size")
    keys |= {"head_dim": size} if size not in (None, hidden // heads) else {}
    # model.py, scaled_dot_product_attention: capped scores are computed one operation at a time, those outside a window
    # as well.
    windows = _windows(config)
    keys |= _norms(config) | ({"attention": "unfused"} if config.get("attention_logit_softcapping") else windows)
    if mlp == "LLaMAMoE":
        width = config.whole("moe_intermediate_size", keys["ffn_hidden_size"])
        keys["moe"] = {
            "num_experts": config.whole("n_expert"),
            "experts_per_token": config.whole("n_expert_per_token", 1),
            "expert_ffn_hidden_size": width,
        }
        shared = config.optional_whole("n_shared_expert", least=0)
        keys["moe"] |= {"shared_expert_ffn_hidden_size": shared * width} if shared else {}
    return keys


def _biases(config: Fields) -> bool | str:
    everywhere, of_queries = config.switch("bias", True), config.switch("attn_bias")
    return everywhere or ("qkv" if of_queries else False)


def _norms(config: Fields) -> dict[str, Any]:
    behind = {config.switch("post_attention_norm"), config.switch("post_mlp_norm")}
    if len(behind) > 1:
        config.broken(config.error("post_mlp_norm", "a norm behind one of attention and FFN is not modelled"))
    kind = config.text("norm_qk_type", "default", ("default", "olmo2"))
    norms: dict[str, Any] = {"post_norms": True} if True in behind else {}
    if config.switch("norm_qk"):
        norms["qk_norm"] = "whole" if kind == "olmo2" else True
    return norms


def _windows(config: Fields) -> dict[str, Any]:
    """Return the keys of windows: in all layers, or in those of a list of zeros and ones."""
    window, which = config.optional_whole("sliding_window_size"), config.get("sliding_window_indices")
    if window is None:
        return {}
    if not isinstance(which, list):
        return {"sliding_window": window}
    layers = config.whole("n_layer", 16)
    kinds = ["sliding_attention" if seen else "full_attention" for seen in which[:layers]]
    return {"sliding_window": window, "layer_types": kinds}
