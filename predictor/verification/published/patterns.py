"""Patterns of layers in rows: of hybrid models, of pipelines, and the sizes of latent attention."""

from __future__ import annotations

import re
from typing import Any

from predictor.verification.published.row import Row, UnexpressedError

# Letters of Megatron-LM's hybrid patterns: a Mamba layer, attention, experts, an FFN.
# Source: Megatron-LM, core/ssm/mamba_hybrid_layer_allocation.py (Symbols).
HYBRID = {
    "M": ("mamba2", "none"),
    "*": ("full_attention", "none"),
    "E": ("none", "experts"),
    "-": ("none", "dense"),
}
PATTERN = re.compile(r"(?:hybrid )?([M*E|-]{4,})(?![a-z])")
MAMBA_HEADS = re.compile(r"mamba heads (\d+) x (\d+), state (\d+)")
# Nemotron-H's and Nemotron 3's groups and chunks. Source: NVIDIA-NeMo/Megatron-Bridge@v0.3.0,
# src/megatron/bridge/models/nemotronh/nemotron_h_provider.py (mamba_num_groups); model cards (chunk_size).
MAMBA_GROUPS, MAMBA_CHUNK = 8, 128
LATENT = re.compile(r"q_lora (\d+), kv_lora (\d+), qk (\d+)\+(\d+), v (\d+)")
# Of a pipeline layout: repeated groups, a repeated letter, chunks between bars. Source: Megatron-LM,
# core/transformer/pipeline_parallel_layer_layout.py.
GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
REPEATED = re.compile(r"([A-Za-z])\*(\d+)")


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
        UnexpressedError: its experts work in a latent space, it predicts further tokens with layers of several kinds,
            or the sizes of its Mamba layers are not stated.
    """
    text = row.text("layer_pattern")
    found = PATTERN.search(text)
    if found is None or "M" not in found[1]:
        return {}
    if "moe latent" in text:
        raise UnexpressedError("experts in a latent space (Nemotron 3 Super) are not modelled")
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


def _chunks(row: Row) -> list[str]:
    """Return the chunks of a row's pipeline layout, expanded; none where it has no such layout."""
    text = row.text("pp_layout").partition(" ")[0]
    if not text.startswith("E"):
        return []
    text = GROUP.sub(lambda found: found[1] * int(found[2]) if "*" not in found[1] else found[0], text)
    text = REPEATED.sub(lambda found: found[1] * int(found[2]), text)
    return GROUP.sub(lambda found: found[1] * int(found[2]), text).split("|")


def mtp_layers(row: Row) -> int:
    """Return the multi-token prediction layers of a row's pipeline layout."""
    return sum(chunk.count("m") for chunk in _chunks(row))


def layers_of_layout(row: Row) -> list[int] | None:
    """Return the decoder layers of each stage of a row's pipeline layout; None where it has none."""
    chunks, stages = _chunks(row), row.whole("pp", 1)
    if not chunks:
        return None
    if len(chunks) != stages * row.whole("vpp", 1):
        raise UnexpressedError("its pipeline layout has other chunks than stages")
    return [sum(chunk.count("t") for chunk in chunks[stage::stages]) for stage in range(stages)]
