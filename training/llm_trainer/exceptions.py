"""Errors of the trainer. Each message is one line: the field, its value, the rule and the way out."""

from __future__ import annotations


class LLMTrainerError(Exception):
    """Base of every error that this package raises on purpose."""


class ModelConfigurationError(LLMTrainerError, AssertionError, ValueError):
    """A configuration, or a saved model, that cannot be used; the API documents an AssertionError."""


class TokenizerNotTrainedException(LLMTrainerError):  # noqa: N818 - the documented name
    """A tokenizer was used before it was trained or loaded."""


class DataError(LLMTrainerError, ValueError):
    """Texts that cannot be read, or of which no sample is left."""


class TrainingError(LLMTrainerError):
    """A training run that cannot start or go on."""


class GenerationError(LLMTrainerError, ValueError):
    """A request for text that cannot be answered."""
