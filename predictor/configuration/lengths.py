"""The lengths of samples and documents that a run trains on, where they are not the model's sequence length."""

from __future__ import annotations

from dataclasses import replace

from predictor.base.errors import ConfigError
from predictor.base.sizes import must_divide
from predictor.configuration.sections import TrainingSection
from predictor.workloads.lora import LoraTarget
from predictor.workloads.switches import Ffn
from predictor.workloads.transformer import Transformer


def check_lora(model: Transformer, training: TrainingSection, tensor_parallel_size: int) -> None:
    """Refuse adapters that are not modelled, or cannot be split.

    Raises:
        ConfigError: experts would have them, or the rank does not divide over tensor-parallel ranks.
    """
    lora = training.lora
    if lora is None:
        return
    of_ffn = [target for target in lora.targets if target in (LoraTarget.FFN_UP, LoraTarget.FFN_DOWN)]
    has_dense = any(model.kind(layer).ffn is Ffn.DENSE for layer in range(model.num_layers))
    if model.experts is not None and of_ffn and not has_dense:
        raise ConfigError(
            f"training.lora.targets has {of_ffn[0]}; adapters of experts are not modelled, so name qkv and "
            "attention_output"
        )
    if not lora.targets:
        raise ConfigError("training.lora.targets is []; name one of " + ", ".join(LoraTarget))
    if {LoraTarget.QKV, LoraTarget.FFN_UP} & set(lora.targets):  # column-parallel layers, whose adapters split the rank
        must_divide("tensor_parallel_size", tensor_parallel_size, "training.lora.rank", lora.rank)


def with_lengths(model: Transformer, training: TrainingSection) -> Transformer:
    """Return a model over samples of their mean length, whose attention stays inside documents.

    All samples and all documents count as long as the mean one; where lengths differ attention takes longer.

    Raises:
        ConfigError: one is longer than the sequence.
    """
    for key in ("document_tokens", "mean_sequence_length"):
        given = getattr(training, key)
        if given is not None and given > model.sequence_length:
            raise ConfigError(
                f"training.{key} is {given}; model.sequence_length is {model.sequence_length}, and no sample is longer"
            )
    if training.document_tokens is not None and training.mean_sequence_length is not None:
        raise ConfigError(
            "training has document_tokens and mean_sequence_length; packed samples are full, so leave one out"
        )
    if training.document_tokens is not None:
        return replace(model, document_tokens=training.document_tokens)
    if training.mean_sequence_length is None:
        return model
    rows = model.num_position_embeddings or model.sequence_length
    return replace(model, sequence_length=training.mean_sequence_length, num_position_embeddings=rows)
