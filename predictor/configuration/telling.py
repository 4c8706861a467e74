"""Tell files of our own trainers from configurations, by their content; loads no reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPERIMENT = "experiment_name"  # a key that every experiment of model_training_framework has, and no configuration
LLM_TRAINER_SECTIONS = frozenset({"model", "training", "data", "prediction"})
LLM_TRAINER_SIZES = frozenset({"d_model", "n_heads", "n_layers", "d_ff", "max_seq_len"})


def is_experiment(content: Mapping[str, Any]) -> bool:
    """Return whether a file is an experiment of model_training_framework."""
    return EXPERIMENT in content


def is_llm_trainer(content: Mapping[str, Any]) -> bool:
    """Return whether a file is of llm_trainer: it has its sizes, or nothing but its sections and data."""
    if EXPERIMENT in content:
        return False
    model, data = content.get("model"), content.get("data")
    has_sizes = isinstance(model, Mapping) and bool(LLM_TRAINER_SIZES & model.keys())
    return has_sizes or (isinstance(data, Mapping) and content.keys() <= LLM_TRAINER_SECTIONS)


def is_of_trainer(content: Mapping[str, Any]) -> bool:
    """Return whether a file is of one of our own trainers; its section ``prediction`` names the system."""
    return is_experiment(content) or is_llm_trainer(content)
