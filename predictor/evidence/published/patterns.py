"""Patterns of layers in rows: of hybrid models, of pipelines, and the sizes of latent attention."""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from predictor.evidence.published.row import Row, UnexpressedError

# Letters of Megatron-LM's hybrid patterns: a Mamba layer, attention, experts, an FFN.
# Source: Megatron-LM, core/ssm/mamba_hybrid_layer_allocation.py (Symbols).
HYBRID = {
    "M": ("mamba2", "none"),
    "*": ("full_attention", "none"),
    "E": ("none", "experts"),
    "-": ("none", "dense"),
}
PATTERN = re.compile(r"(?:hybrid )?([M*E|-]{4,})(?![a-z])")
LATENT_EXPERTS = re.compile(r"moe latent (\d+)")
MAMBA_HEADS = re.compile(r"mamba heads (\d+) x (\d+), state (\d+)")
# Nemotron-H's and Nemotron 3's groups and chunks. Source: NVIDIA-NeMo/Megatron-Bridge@v0.3.0,
# src/megatron/bridge/models/nemotronh/nemotron_h_provider.py (mamba_num_groups); model cards (chunk_size).
MAMBA_GROUPS, MAMBA_CHUNK = 8, 128
LATENT = re.compile(r"q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)")


def latent_attention(row: Row) -> dict[str, Any]:
    """Return the sizes of a row's multi-head latent attention; empty where it has none.

    Raises:
        UnexpressedError: the row does not state them.
    """
    if not row.has("mla", "yes"):
        return {}
    found = LATENT.search(row.text("mla"))
    if found is None:
        raise UnexpressedError("sizes of latent attention are not stated")
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {"latent_attention": dict(zip(names, map(int, found.groups()), strict=True))}


def hybrid(row: Row) -> dict[str, Any]:
    """Return the layers of a hybrid model; empty where a row has no Mamba layers.

    Raises:
        UnexpressedError: it predicts further tokens with layers of several kinds, or the sizes of its Mamba layers are
            not stated.
    """
    text = row.text("layer_pattern")
    found = PATTERN.search(text)
    if found is None or "M" not in found[1]:
        return {}
    if "MTP" in text:
        raise UnexpressedError("prediction modules with layers of several kinds (Nemotron 3 Super) are not modelled")
    sizes = MAMBA_HEADS.search(text)
    if sizes is None:
        raise UnexpressedError("sizes of Mamba layers are not stated")
    kinds = [HYBRID[letter] for letter in found[1].replace("|", "")]
    heads, width, state = map(int, sizes.groups())
    return {
        "layer_types": [mixer for mixer, _ in kinds],
        "ffn_types": [ffn for _, ffn in kinds],
        "mamba2": {
            "num_heads": heads,
            "head_dim": width,
            "state_size": state,
            "num_groups": MAMBA_GROUPS,
            "chunk_size": MAMBA_CHUNK,
        },
    }


def mtp_layers(row: Row) -> int:
    """Return the modules of a row's model that predict further tokens.

    Those of its pipeline layout; without one, DeepSeek-V3 has one in Megatron-Bridge's recipes, unless the row says
    none. Source: Megatron-Bridge, src/megatron/bridge/recipes/deepseek/deepseek_v3.py, mtp_num_layers.

    Raises:
        UnexpressedError: the row does not say it, and its recipe is not known.
    """
    text = row.text("pp_layout").partition(" ")[0]
    if text.startswith("E"):
        return text.count("m")
    if not row.has("model", "deepseekv3") or row.has("model", "cut to") or row.has("notes", "w/o MTP"):
        return 0
    if not row.has("framework", "Megatron-Bridge v", "Megatron-Bridge r"):
        raise UnexpressedError("whether the run predicts further tokens (MTP) is not stated")
    return 1


def layers_of_layout(row: Row) -> str | None:
    """Return the layers of each chunk of a row's pipeline; None where its layers are split evenly.

    The 61 layers of DeepSeek-V3 and Kimi K2 lie on chunks that are alike, but for the last and, of 32, the first.
    Source: Megatron-Bridge, src/megatron/bridge/recipes/deepseek/deepseek_v3.py, layout_map, and kimi/kimi_k2.py;
    scripts/performance/configs/deepseek, "Et|(tt|)*30mL".
    """
    text, slots = row.text("pp_layout").partition(" ")[0], row.whole("pp", 1) * row.whole("vpp", 1)
    if text.startswith("E"):
        return text
    if not row.has("model", "deepseekv3", "kimi_k2") or row.has("model", "cut to") or slots == 1:
        return None
    layers = row.whole("layers")
    share = ceil(layers / slots)
    last = max(0, layers - share * (slots - 1))
    first = layers - share * (slots - 2) - last
    return "E" + "t" * first + "|" + f"t*{share}|" * (slots - 2) + "t" * last + "m" * mtp_layers(row) + "L"
