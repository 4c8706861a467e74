"""The arguments of Megatron-LM on kinds of layers: latent attention, windows, experts in some layers, hybrids, MTP.

Source of names: NVIDIA/Megatron-LM, megatron/training/arguments.py (_add_mla_args, moe_freq_type) and
megatron/core/ssm/mamba_hybrid_layer_allocation.py.
"""

from __future__ import annotations

from itertools import cycle, groupby, islice
from typing import TypeVar

from predictor.core.base.errors import ConfigError
from predictor.core.blocks.latent_attention import LatentAttention
from predictor.core.blocks.mixers import Mixer
from predictor.core.schema.model_section import ModelSection
from predictor.core.workload.switches import Ffn
from predictor.formats.megatron.layers import LETTERS
from predictor.formats.megatron.releases import Release

Kind = TypeVar("Kind")
# Program and specification of hybrids' layers, which were called Mamba models at first.
HYBRIDS_SINCE = "0.18"
HYBRID = ("pretrain_hybrid.py", "megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec")
MAMBA = ("pretrain_mamba.py", "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec")
BY_LAYER = {layer: letter for letter, layer in LETTERS.items()}
ATTENTION = {Mixer.SLIDING: 1, Mixer.FULL: 0}


def is_hybrid(model: ModelSection) -> bool:
    """Return whether a layer is a token mixer or an FFN alone, as Megatron-LM's hybrid models are built."""
    return Mixer.NONE in (model.layer_types or ()) or Ffn.NONE in (model.ffn_types or ())


def hybrid_program(series: Release) -> str:
    """Return the program that trains hybrids."""
    return (HYBRID if series.has(HYBRIDS_SINCE) else MAMBA)[0]


def layer_arguments(model: ModelSection, series: Release) -> list[str]:
    """Return the arguments of kinds of layers.

    Raises:
        ConfigError: Megatron-LM has none for a part of it.
    """
    words = [] if model.latent_attention is None else _latent_attention(model.latent_attention)
    if is_hybrid(model):
        words += _hybrid(model, series)
    elif model.layer_types is not None:
        words += _windows(model)
    if model.attention_sinks:
        words.append("--softmax-type learnable")
    return words + ([f"--mtp-num-layers {model.num_mtp_layers}"] if model.num_mtp_layers else [])


def expert_layers(model: ModelSection) -> list[str]:
    """Return the argument on which layers have experts; none where all have, or a hybrid's pattern says so."""
    if model.moe is None or is_hybrid(model):
        return []
    if model.ffn_types is not None:
        pattern = [int(ffn is Ffn.EXPERTS) for ffn in _each(model.ffn_types, model.num_layers)]
    else:
        dense = model.moe.num_dense_layers
        pattern = [0] * dense + [1] * (model.num_layers - dense)
    return [] if 0 not in pattern else [f"--moe-layer-freq '{_written(pattern)}'"]


def _latent_attention(sizes: LatentAttention) -> list[str]:
    """Return the arguments of latent attention, its norms of both latents and its fused rotation among them."""
    if sizes.indexer is not None:
        raise ConfigError("Megatron-LM's arguments for model.latent_attention.indexer are not written")
    return [
        "--multi-latent-attention",
        *([f"--q-lora-rank {sizes.q_lora_rank}"] if sizes.q_lora_rank else []),
        f"--kv-lora-rank {sizes.kv_lora_rank}",
        f"--qk-head-dim {sizes.qk_nope_head_dim}",
        f"--qk-pos-emb-head-dim {sizes.qk_rope_head_dim}",
        f"--v-head-dim {sizes.v_head_dim}",
        "--qk-layernorm",
        "--enable-experimental",  # which the fused rotation of latent attention asks for
    ]


def _windows(model: ModelSection) -> list[str]:
    """Return the argument on which layers have the window.

    Raises:
        ConfigError: a layer is neither full nor windowed attention.
    """
    types = _each(model.layer_types or (), model.num_layers)
    others = sorted(set(types) - ATTENTION.keys())
    if others:
        raise ConfigError(f"Megatron-LM's arguments for model.layer_types {', '.join(others)} are not written")
    pattern = [ATTENTION[mixer] for mixer in types]
    return [] if 0 not in pattern or 1 not in pattern else [f"--window-attn-skip-freq '{_written(pattern)}'"]


def hybrid_pattern(model: ModelSection) -> str:
    """Return a hybrid's layers, a letter each.

    Raises:
        ConfigError: a layer has no letter, or has experts, which the specification of layers written here has not.
    """
    mixers = _each(model.layer_types or (Mixer.FULL,), model.num_layers)
    ffns = _each(model.ffn_types or (Ffn.DENSE,), model.num_layers)
    unknown = {layer for layer in zip(mixers, ffns, strict=True) if layer not in BY_LAYER or layer[1] is Ffn.EXPERTS}
    if unknown:
        mixer, ffn = sorted(unknown)[0]
        raise ConfigError(f"Megatron-LM's arguments for a hybrid's layers of {mixer} with {ffn} are not written")
    return "".join(BY_LAYER[layer] for layer in zip(mixers, ffns, strict=True))


def _hybrid(model: ModelSection, series: Release) -> list[str]:
    """Return the arguments of a hybrid but its pattern of layers: the sizes of its Mamba-2 layers."""
    words = ["--is-hybrid-model", f"--spec {(HYBRID if series.has(HYBRIDS_SINCE) else MAMBA)[1]}"]
    if model.mamba2 is None:
        return words
    return [
        *words,
        f"--mamba-num-heads {model.mamba2.num_heads}",
        f"--mamba-head-dim {model.mamba2.head_dim}",
        f"--mamba-state-dim {model.mamba2.state_size}",
        f"--mamba-num-groups {model.mamba2.num_groups}",
    ]


def _each(period: tuple[Kind, ...], count: int) -> list[Kind]:
    return list(islice(cycle(period), count))


def _written(pattern: list[int]) -> str:
    """Return zeros and ones as Megatron-LM's lists.

    >>> _written([0, 0, 0, 1, 1])
    '([0]*3+[1]*2)'
    """
    runs = "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(pattern))
    return f"({runs})"
