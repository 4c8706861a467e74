"""Token mixers of a config.json beside plain attention: their sizes."""

from __future__ import annotations

from typing import Any

from predictor.formats.hugging_face.config import Config
from predictor.formats.hugging_face.recurrences import recurrence

FULL = "full_attention"


def mixers(config: Config, kinds: set[str]) -> dict[str, Any]:
    """Return the sections of the model's token mixers.

    Args:
        config: the file.
        kinds: token mixers of its layers.

    Raises:
        ConfigError: a size is missing, or a variant is not modelled.
    """
    found: dict[str, Any] = {}
    if config.is_given("kv_lora_rank") or config.value("kv_lora_rank"):
        found["latent_attention"] = _latent_attention(config)
    if "mamba2" in kinds:
        found["mamba2"] = mamba2(config)
    if "gated_delta" in kinds:
        found["gated_delta"] = _channel_delta(config) if config.family.channel_decay else _gated_delta(config)
    if "lightning_attention" in kinds:
        heads = config.whole("num_attention_heads")
        width = config.optional("head_dim") or config.whole("hidden_size") // heads
        block = config.whole("block_size")
        found["lightning_attention"] = {"num_heads": heads, "head_dim": width, "chunk_size": block}
    if "recurrence" in kinds:
        found["recurrence"] = recurrence(config)
    return found


def _latent_attention(config: Config) -> dict[str, Any]:
    """Return the sizes of multi-head latent attention, and of an indexer in front of it."""
    sizes = {key: config.whole(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")}
    values = config.optional("v_head_dim") or config.whole("hidden_size") // config.whole("num_attention_heads")
    found: dict[str, Any] = {"q_lora_rank": config.optional("q_lora_rank"), **sizes, "v_head_dim": values}
    if config.value("index_n_heads"):
        found["indexer"] = {
            "num_heads": config.whole("index_n_heads"),
            "head_dim": config.whole("index_head_dim"),
            "top_k": config.whole("index_topk"),
        }
    return {key: value for key, value in found.items() if value is not None}


def mamba2(config: Config) -> dict[str, Any]:
    """Return the sizes of Mamba-2 layers; their projections have no biases."""
    for key in ("mamba_proj_bias", "use_bias"):
        if config.switch(key):
            raise config.error(key, "biases of a Mamba layer's projections are not modelled")
    heads = config.whole("mamba_n_heads")
    head_dim = config.value("mamba_d_head")
    if head_dim in (None, "auto"):
        head_dim = config.whole("mamba_expand") * config.whole("hidden_size") // heads
    found = {
        "num_heads": heads,
        "head_dim": config.whole("mamba_d_head") if isinstance(head_dim, float | str) else head_dim,
        "state_size": config.whole("mamba_d_state"),
        "num_groups": config.whole("mamba_n_groups"),
        "conv_kernel": config.whole("mamba_d_conv"),
        "chunk_size": config.whole("mamba_chunk_size"),
    }
    return found | ({} if config.switch("mamba_conv_bias") else {"conv_bias": False})


def _gated_delta(config: Config) -> dict[str, Any]:
    """Return the sizes of gated delta layers; OLMo Hybrid's follow from the model's where they are null."""
    heads = config.whole("num_attention_heads")
    key_heads = config.optional("linear_num_key_heads") or heads
    key_width = config.optional("linear_key_head_dim") or int(0.75 * config.whole("hidden_size") / key_heads)
    return {
        "num_key_heads": key_heads,
        "num_value_heads": config.optional("linear_num_value_heads") or heads,
        "key_head_dim": key_width,
        "value_head_dim": config.optional("linear_value_head_dim") or 2 * key_width,
        "conv_kernel": config.whole("linear_conv_kernel_dim"),
    }


def _channel_delta(config: Config) -> dict[str, Any]:
    """Return the sizes of Kimi's delta attention; Kimi Linear projects gate and decays through the width of a head."""
    given = config.fields.section("linear_attn_config")
    own = config.fields  # a class writes the width of these heads apart, where it overwrites head_dim
    heads = config.optional("linear_num_heads") or config.whole("num_attention_heads")
    heads = given.whole("num_heads", own.whole("linear_num_heads", heads))
    width = given.whole("head_dim", own.whole("linear_head_dim", config.optional("linear_head_dim")))
    kernel = given.whole(
        "short_conv_kernel_size", own.whole("linear_conv_kernel_dim", config.optional("linear_conv_kernel_dim"))
    )
    for key in given.unused():
        if key not in ("full_attn_layers", "kda_layers", "gate_lower_bound"):
            raise given.error(key, "it is not modelled")
    sizes = {"num_key_heads": heads, "num_value_heads": heads, "key_head_dim": width, "value_head_dim": width}
    rank = {"gate_rank": width} if config.model_type == "kimi_linear" else {}
    return {**sizes, "conv_kernel": kernel, "channel_decay": True, **rank}
