"""Refuse what a model section can say and no step is predicted for."""

from __future__ import annotations

from predictor.base.errors import ConfigError
from predictor.configuration.model_section import ModelSection


def check_priced(model: ModelSection) -> None:
    """Refuse models whose parameters are known and whose time is not.

    Raises:
        ConfigError: attention is sparse: its kernels' times are not known.
    """
    if model.latent_attention is not None and model.latent_attention.indexer is not None:
        raise ConfigError(
            "model.latent_attention.indexer is read and its parameters are counted; the time of sparse attention is "
            "not modelled, so leave it out to predict dense attention, as these models were trained before"
        )
