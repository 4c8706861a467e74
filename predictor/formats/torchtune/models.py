"""Models of torchtune by the function that builds them.

Source: pytorch/torchtune 0.6.1, torchtune/models/*/_model_builders.py and _component_builders.py.
"""

from __future__ import annotations

import re
from typing import Any

from predictor.core.base.errors import ConfigError, nearest
from predictor.formats.fields import Fields
from predictor.formats.fsdp_stack import sizes_of

PRESETS = {
    "llama2_7b": "llama2-7b",
    "llama2_13b": "llama2-13b",
    "llama2_70b": "llama2-70b",
    "code_llama2_7b": "llama2-7b",
    "code_llama2_13b": "llama2-13b",
    "code_llama2_70b": "llama2-70b",
    "llama3_8b": "llama3-8b",
    "llama3_70b": "llama3-70b",
    "llama3_1_8b": "llama3.1-8b",
    "llama3_1_70b": "llama3.1-70b",
    "llama3_1_405b": "llama3.1-405b",
    "llama3_2_1b": "llama3.2-1b",
    "llama3_2_3b": "llama3.2-3b",
    "llama3_3_70b": "llama3.1-70b",
    "mistral_7b": "mistral-7b",
    "gemma_2b": "gemma-2b",
    "gemma_7b": "gemma-7b",
    "gemma2_2b": "gemma2-2b",
    "gemma2_9b": "gemma2-9b",
    "gemma2_27b": "gemma2-27b",
    "phi3_mini": "phi-3-mini",
    "phi4_14b": "phi-4",
    "qwen2_0_5b": "qwen2.5-0.5b",
    "qwen2_1_5b": "qwen2.5-1.5b",
    "qwen2_7b": "qwen2.5-7b",
    **{
        f"qwen2_5_{size.replace('.', '_')}": f"qwen2.5-{size}"
        for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")
    },
    **{f"qwen3_{size.replace('.', '_')}": f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")},
}
# Where torchtune's model differs from the preset's.
CHANGES: dict[str, dict[str, Any]] = {
    **{f"code_llama2_{size}": {"vocab_size": 32016} for size in ("7b", "13b", "70b")},
    **{f"gemma{version}": {"vocab_size": 256000} for version in ("_2b", "_7b", "2_2b", "2_9b", "2_27b")},
}
# Builders that take sizes, with what their layers have beside the usual ones.
BUILDERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("llama2", "llama3", "llama3_1", "llama3_2", "mistral", "phi3")},
    "qwen2": {"biases": "qkv"},
    "qwen3": {"qk_norm": True},
}
USUAL = {"activation": "swiglu", "rotary_fraction": 1.0, "biases": False, "normalization": "rms_norm"}
REASONS = {
    "vision": "its vision tower and cross attention are not modelled",
    "clip": "its vision tower is not modelled",
    "llama4": "its vision tower sees images whose number and sizes only the data say",
    "t5": "encoder-decoders are not modelled",
    "flux": "it makes images",
    "reward": "reward models are not modelled",
    "classifier": "classifiers are not modelled",
}
FULL_NAME = re.compile(r"^torchtune\.models\.(?:\w+\.)*(?P<kind>q?lora_)?(?P<name>\w+?)(?:_(?:base|instruct))?$")
ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "output_proj": "attention_output"}


def model_section(section: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the section ``model`` without its sequence length, and the key ``lora`` of ``training``.

    Raises:
        ConfigError: the model is not modelled, or its builder is not torchtune's.
    """
    told = FULL_NAME.match(section.text("_component_", ""))
    if told is None:
        raise section.error("_component_", "it is not of torchtune.models; give the model's config.json in front of it")
    kind, name = told["kind"] or "", told["name"]
    reason = next((why for word, why in REASONS.items() if word in name), None)
    if reason is not None:
        raise section.error("_component_", reason)
    if name in PRESETS:
        sizes = {**sizes_of(PRESETS[name]), **CHANGES.get(name, {})}
    elif name in BUILDERS:
        sizes = _sized(section, name)
    else:
        raise section.error("_component_", f"it is not known here.{nearest(name, PRESETS)}")
    return {**sizes, "loss": "torch"}, _lora(section, kind == "qlora_") if kind else {}


def _sized(section: Fields, name: str) -> dict[str, Any]:
    heads = section.whole("num_heads")
    hidden = section.whole("embed_dim")
    width = section.optional_whole("intermediate_dim")
    if width is None:  # torchtune/models/llama2/_component_builders.py, scale_hidden_dim_for_mlp
        width = -(-int(2 * 4 * hidden / 3) // 256) * 256
    return {
        **USUAL,
        **BUILDERS[name],
        "num_layers": section.whole("num_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": section.whole("num_kv_heads", heads),
        "ffn_hidden_size": width,
        "vocab_size": section.whole("vocab_size"),
        "tied_embeddings": section.switch("tie_word_embeddings"),
        "attention_dropout": section.real("attn_dropout", 0.0),
    }


def _lora(section: Fields, is_quantized: bool) -> dict[str, Any]:
    """Return the key ``lora``.

    Raises:
        ConfigError: an adapter is not modelled.
    """
    names = section.get("lora_attn_modules")
    if not isinstance(names, list) or not set(names) <= ATTENTION.keys():
        raise section.error("lora_attn_modules", f"expected a list of {', '.join(ATTENTION)}")
    if section.switch("apply_lora_to_output"):
        raise section.error(
            "apply_lora_to_output", "an adapter of the output projection is not modelled; set it to false"
        )
    section.get("lora_alpha")
    targets = [ATTENTION[name] for name in names]
    targets += ["gate", "up", "ffn_down"] if section.switch("apply_lora_to_mlp") else []
    if not targets:
        raise ConfigError(f"{section.where}: model has no adapters; name them in lora_attn_modules")
    keys: dict[str, Any] = {"rank": section.whole("lora_rank", 8), "targets": targets, "fp32": False}
    keys |= {"dropout": rate} if (rate := section.real("lora_dropout", 0.0)) else {}
    keys |= {"dora": True} if section.switch("use_dora") else {}
    quantized = section.switch("quantize_base", is_quantized)
    return keys | ({"quantized_base": "nf4_double"} if quantized else {})
