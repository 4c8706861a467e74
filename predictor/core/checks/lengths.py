"""The lengths of samples and documents that a run trains on, where they are not the model's sequence length."""

from __future__ import annotations

from dataclasses import replace

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.transformer import Transformer


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
