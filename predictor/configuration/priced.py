"""Refuse what a model section can say and no step is predicted for."""

from __future__ import annotations

from predictor.base.errors import ConfigError
from predictor.configuration.model_section import ModelSection
from predictor.configuration.sections import TrainingSection


def _in_model(model: ModelSection, training: TrainingSection) -> dict[str, bool]:
    """Return what of a model's ends, and of training, has no time yet, by key."""
    return {
        "model.vision": model.vision is not None,
    }


def check_priced(model: ModelSection, training: TrainingSection) -> None:
    """Refuse configurations whose parameters are known and whose time is not.

    Raises:
        ConfigError: one of their keys has no time yet.
    """
    for key, is_used in _in_model(model, training).items():
        if is_used:
            raise ConfigError(
                f"{key} is read and its parameters are counted; its time is not modelled, so leave it out"
            )
