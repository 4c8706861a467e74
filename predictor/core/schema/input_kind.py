"""Detect the kind of an input: trainer file, HugeCTR configuration, hub id; loads no reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXPERIMENT = "experiment_name"  # a key that every experiment of model_training_framework has, and no configuration
LLM_TRAINER_SECTIONS = frozenset({"model", "training", "data", "prediction"})
LLM_TRAINER_SIZES = frozenset({"d_model", "n_heads", "n_layers", "d_ff", "max_seq_len"})
LLM_FOUNDRY = frozenset({"train_loader", "global_train_batch_size", "device_train_microbatch_size", "parameters"})
# Formats of files that are predicted as they are.
EXPERIMENT_FORMAT = "experiment of model_training_framework"
LLM_TRAINER_FORMAT = "configuration of llm_trainer"
TRAINERS = (EXPERIMENT_FORMAT, LLM_TRAINER_FORMAT)
HUGGING_FACE_BATCH = "per_device_train_batch_size"
HUGECTR = "HugeCTR configuration"  # of a recommender; no ``from`` takes it
HUB = "hf:"  # what the id of a model of the Hugging Face Hub begins with


def is_model_id(name: str) -> bool:
    """Return whether a name asks for a model of the Hugging Face Hub."""
    return name.startswith(HUB)


ADAPTERS = ("lora", "qlora", "peft", "quantization")  # sections of fine-tuning, which our own trainers have not


def part_of_file(name: str) -> tuple[Path, str] | None:
    """Return file and key of a configuration inside it (``config.json#text_config``); None for a file itself."""
    file, mark, part = name.rpartition("#")
    return (Path(file), part) if mark and part and not Path(name).exists() else None


def is_experiment(content: Mapping[str, Any]) -> bool:
    """Return whether a file is an experiment of model_training_framework."""
    return EXPERIMENT in content and not _is_of_hugging_face(content)


def _is_of_hugging_face(content: Mapping[str, Any]) -> bool:
    """Return whether a file has adapters, or the batch of a Hugging Face Trainer; ours have neither."""
    sections = [content, *(part for part in content.values() if isinstance(part, Mapping))]
    has_adapters = any(isinstance(content.get(name), Mapping) for name in ADAPTERS)
    return has_adapters or any(HUGGING_FACE_BATCH in section for section in sections)


def is_llm_trainer(content: Mapping[str, Any]) -> bool:
    """Return whether a file is of llm_trainer: it has its sizes, or nothing but its sections and data."""
    if EXPERIMENT in content or LLM_FOUNDRY & content.keys() or _is_of_hugging_face(content):
        return False  # MPT's sizes have the same names
    model, data = content.get("model"), content.get("data")
    has_sizes = isinstance(model, Mapping) and bool(LLM_TRAINER_SIZES & model.keys())
    if isinstance(model, Mapping) and "model_name" in model:  # of Oumi, whose sections have the same names
        return False
    return has_sizes or (isinstance(data, Mapping) and content.keys() <= LLM_TRAINER_SECTIONS)


def is_hugectr(content: Mapping[str, Any]) -> bool:
    """Return whether a file is a HugeCTR configuration, told by its layers."""
    layers = content.get("layers")
    return isinstance(layers, list) and any(
        isinstance(layer, Mapping) and layer.get("type") == "Data" for layer in layers
    )


def is_plan(content: Mapping[str, Any]) -> bool:
    """Return whether a file is a plan, which names the systems that may be chosen, rather than a configuration."""
    return "systems" in content


def is_of_trainer(content: Mapping[str, Any]) -> bool:
    """Return whether a file is of one of our own trainers; its section ``prediction`` names the system."""
    return is_experiment(content) or is_llm_trainer(content)
