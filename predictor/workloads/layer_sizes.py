"""The sizes that the operators of one kind of layer see."""

from __future__ import annotations

from dataclasses import replace

from predictor.workloads.layer_call import LayerCall
from predictor.workloads.run import TrainingRun
from predictor.workloads.switches import LayerKind, Mixer


def sized(run: TrainingRun, kind: LayerKind) -> LayerCall:
    """Return the sizes that the operators of one kind of layer see.

    Heads of latent attention are as wide as their queries, keys and values on average.
    """
    model, call = run.model, run.call()
    if not kind.mixer.is_attention:
        return call
    window = model.sliding_window if kind.mixer is Mixer.SLIDING else 0
    segments = [length for length in (model.document_tokens,) if length]
    if kind.mixer is Mixer.CHUNKED:
        segments.append(model.attention_chunk)
    segment = min(segments, default=0)
    if model.latent_attention is not None:
        return replace(call, segment=segment, head_width=model.latent_attention.mean_width, num_key_value_heads=0)
    return replace(call, window=window, segment=segment) if window or segment else call
