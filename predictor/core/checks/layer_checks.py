"""Check the layers of a model section: patterns, and the sizes that their kinds need."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.base.sizes import must_divide
from predictor.core.blocks.mixers import WITH_BLOCKS, Mixer
from predictor.core.schema.model_section import ModelSection
from predictor.core.workload.switches import Attention, Ffn

# What a kind of layer needs, as key of the model section.
NEEDED = {
    Mixer.SLIDING: ("sliding_window", "the tokens that a query sees"),
    Mixer.CHUNKED: ("attention_chunk", "the tokens of a chunk"),
} | {mixer: (mixer.value, "the sizes of those layers") for mixer in WITH_BLOCKS}


def _check_pattern(model: ModelSection, key: str) -> None:
    """Check that a pattern is no longer than the model, and does not stand beside its shorthand."""
    pattern = getattr(model, key)
    if pattern is not None and len(pattern) > model.num_layers:
        raise ConfigError(
            f"model.{key} has {len(pattern)} layers; the model has {model.num_layers} (num_layers). Give one period of "
            "the pattern, or all layers"
        )


def _check_shared_index(model: ModelSection) -> None:
    if model.latent_attention is None or model.latent_attention.indexer is None:
        raise ConfigError(f"model.layer_types has {Mixer.SHARED_INDEX}; it needs model.latent_attention.indexer")
    if model.layer_types is not None and model.layer_types[0] is not Mixer.FULL:
        raise ConfigError(f"model.layer_types begins with {model.layer_types[0]}; no layer before it has an indexer")


def _check_mixers(model: ModelSection) -> None:
    _check_pattern(model, "layer_types")
    types = set(model.layer_types or ())
    if model.layer_types is not None and model.sliding_window_layers is not None:
        raise ConfigError("model has layer_types and sliding_window_layers; both say which layers have the window")
    for mixer, (key, what) in NEEDED.items():
        given = getattr(model, key) is not None
        if mixer in types and not given:
            raise ConfigError(f"model.layer_types has {mixer}; it needs model.{key}, {what}")
        is_default = mixer is Mixer.SLIDING and model.layer_types is None
        is_default = is_default or (mixer is Mixer.MAMBA2 and model.mamba2_beside_attention)
        if given and mixer not in types and not is_default:
            raise ConfigError(f"model.{key} is given and no layer of model.layer_types is {mixer}; leave it out")
    if Mixer.SHARED_INDEX in types:
        _check_shared_index(model)
    if model.mamba2_beside_attention and (model.mamba2 is None or model.latent_attention is not None):
        raise ConfigError("model.mamba2_beside_attention needs model.mamba2, and attention that is not latent")
    if model.sliding_latent_attention is not None and (model.latent_attention is None or Mixer.SLIDING not in types):
        raise ConfigError("model.sliding_latent_attention needs model.latent_attention and layers with a window")
    full = model.full_attention
    if full is not None and (model.latent_attention is not None or Mixer.SLIDING not in types):
        raise ConfigError("model.full_attention gives other heads than layers with a window have; it needs such layers")
    if full is not None and full.num_key_value_heads is not None:
        must_divide("num_key_value_heads", full.num_key_value_heads, "num_attention_heads", model.num_attention_heads)
    if types & {Mixer.CHUNKED} and not (model.causal and model.attention is Attention.FLASH):
        raise ConfigError("model.attention_chunk needs causal: true and attention: flash")


def _check_ffns(model: ModelSection) -> None:
    _check_pattern(model, "ffn_types")
    types = set(model.ffn_types or ())
    if model.ffn_types is None:
        return
    if (Ffn.EXPERTS in types) != (model.moe is not None):
        raise ConfigError("model.ffn_types has experts exactly where model.moe gives their sizes; add or leave out one")
    if model.moe is not None and model.moe.num_dense_layers:
        raise ConfigError("model has ffn_types and moe.num_dense_layers; both say which layers have experts")


def _check_nothing_left(model: ModelSection) -> None:
    """Refuse layers that are neither a token mixer nor an FFN."""
    mixers, ffns = model.layer_types, model.ffn_types
    if mixers is None or ffns is None:
        return
    for layer in range(model.num_layers):
        if mixers[layer % len(mixers)] is Mixer.NONE and ffns[layer % len(ffns)] is Ffn.NONE:
            raise ConfigError(
                f"layer {layer} has neither a token mixer nor an FFN (model.layer_types, model.ffn_types: none); give "
                "it one of them"
            )


def _check_sizes(model: ModelSection) -> None:
    for mixer in model.mixers.values():
        mixer.check_sizes()
    if model.shared_input_norm and not model.parallel_residual:
        raise ConfigError("model.shared_input_norm needs parallel_residual: true; in turn, attention and FFN differ")
    if model.latent_attention is not None:
        windowed = () if model.sliding_latent_attention is not None else ("sliding_window",)
        for key in ("num_key_value_heads", "head_dim", *windowed):
            if getattr(model, key) is not None:
                raise ConfigError(f"model.{key} and model.latent_attention both give heads; leave {key} out")
        sparse = model.sliding_window is not None or model.latent_attention.indexer is not None
        if model.attention is not Attention.FLASH and sparse:
            raise ConfigError(
                f"model.attention is {model.attention}; model.latent_attention with a window or an indexer needs flash"
            )
    if model.encoder is not None and model.causal:
        raise ConfigError("model.encoder needs causal: false; an encoder's tokens see later ones too")
    if model.encoder is not None and model.num_mtp_layers:
        raise ConfigError("model.num_mtp_layers needs a decoder; leave it out, or leave out encoder")
    if model.vision is not None:
        _check_vision(model)


def _check_vision(model: ModelSection) -> None:
    vision = model.vision
    assert vision is not None
    must_divide("patch_size", vision.patch_size, "image_size", vision.image_size)
    must_divide("num_attention_heads", vision.num_attention_heads, "hidden_size", vision.hidden_size)
    if (vision.tokens_per_image is None) == (vision.patches_per_token is None):
        raise ConfigError("model.vision needs either tokens_per_image or patches_per_token")
    if vision.patches_per_token is not None:
        must_divide("patches_per_token", vision.patches_per_token, "the patches of an image", vision.patches)
    tokens = vision.image_tokens * vision.images_per_sample
    if tokens > model.sequence_length:
        raise ConfigError(
            f"model.vision puts {tokens} tokens into a sample (tokens_per_image × images_per_sample); sequence_length "
            f"is {model.sequence_length}"
        )


def check_layers(model: ModelSection) -> None:
    """Check what says which layers a model has.

    Raises:
        ConfigError: keys contradict each other, or one that is needed is missing.
    """
    _check_mixers(model)
    _check_ffns(model)
    _check_nothing_left(model)
    _check_sizes(model)
