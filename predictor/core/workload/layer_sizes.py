"""Operand sizes of one kind of layer."""

from __future__ import annotations

from dataclasses import replace

from predictor.core.blocks.mixers import LayerKind, Mixer
from predictor.core.costs.layer_call import LayerCall
from predictor.core.workload.architecture import Architecture


def sized(model: Architecture, call: LayerCall, kind: LayerKind) -> LayerCall:
    """Return a model's call as the operators of one kind of layer see it.

    Heads of latent attention are as wide as their queries, keys and values on average. Keys that an indexer chooses are
    as many as a window of that size has, wherever they stand.
    """
    if not kind.mixer.is_attention:
        return call
    window = model.window_of(kind.mixer)
    segments = [length for length in (model.document_tokens,) if length]
    if kind.mixer is Mixer.CHUNKED:
        segments.append(model.attention_chunk)
    segment = min(segments, default=0)
    latent = model.latent_of(kind.mixer)
    if latent is not None:
        heads, width = model.query_heads(kind.mixer), latent.mean_width
        if latent.indexer is not None and latent.indexer.top_k < (segment or model.sequence_length):
            window = min(window or latent.indexer.top_k, latent.indexer.top_k)
        return replace(
            call, num_attention_heads=heads, head_width=width, num_key_value_heads=0, segment=segment, window=window
        )
    key_value_heads, head_dim = model.heads_of(kind.mixer)
    if (key_value_heads, head_dim) != (model.key_value_heads, model.head_dim):
        call = replace(call, num_key_value_heads=key_value_heads, head_width=head_dim)
    if model.key_value_projections(kind.mixer) == 1:
        call = replace(call, shared_key_values=True)
    return replace(call, window=window, segment=segment) if window or segment else call
