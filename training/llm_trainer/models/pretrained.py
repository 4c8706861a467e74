"""Save and load models: safetensors for weights, JSON for the configuration, as transformers does too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import ModelConfigurationError
from llm_trainer.models.hugging_face import (
    HEAD,
    TOKENS,
    give_weights,
    read_model_config,
    take_weights,
    write_model_config,
)
from predictor.core.base.files import atomic_file, write_whole
from predictor.core.base.read_yaml import read_keys

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
THEIRS = "model_type"  # a key of every config.json of transformers


class Model(Protocol):
    """What is saved and loaded of a language model."""

    config: ModelConfig

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights by name."""


def save(model: Model, folder: Path) -> None:
    """Write a model's configuration and weights to a folder; a tied head is left out.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings and TOKENS in weights:
        weights.pop(HEAD, None)
    _write_weights(weights, folder)
    model.config.save(folder / CONFIG)


def save_for_transformers(model: Model, folder: str | Path) -> None:
    """Write a model as transformers' GPT2LMHeadModel or LlamaForCausalLM, for their ``from_pretrained``.

    Raises:
        ModelConfigurationError: neither of them has this architecture.
        OSError: the files cannot be written.
    """
    folder, content = Path(folder), write_model_config(model.config)
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(give_weights(model.config, model.state_dict()), folder)
    write_whole(folder / CONFIG, json.dumps(content, indent=2) + "\n")


def _write_weights(weights: dict[str, Tensor], folder: Path) -> None:
    with atomic_file(folder / WEIGHTS) as building:
        save_file(weights, building, metadata={"format": "pt"})


def read_config_and_weights(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration and the weights of a folder, a tied head's included.

    Args:
        folder: written by ``save``, or by ``save_pretrained`` of transformers' GPT-2 or LLaMA.

    Raises:
        ModelConfigurationError: files are missing or damaged, or do not fit each other.
    """
    content = read_keys(_existing(folder, CONFIG), ModelConfigurationError)
    try:
        is_theirs = THEIRS in content
        config = read_model_config(content) if is_theirs else ModelConfig.from_dict(content)
        weights = _read_weights(folder)
        if is_theirs:
            weights = take_weights(config, weights)
    except ModelConfigurationError as error:
        raise ModelConfigurationError(f"{folder}: {error}") from None
    if config.tie_word_embeddings and TOKENS in weights:
        weights[HEAD] = weights[TOKENS]
    return config, weights


def _existing(folder: Path, name: str) -> Path:
    """Return a file of a saved model.

    Raises:
        ModelConfigurationError: there is none; the message says whether the folder is missing.
    """
    if not folder.is_dir():
        raise ModelConfigurationError(f"{folder} is no folder; expected one that save_pretrained wrote")
    if not (folder / name).is_file():
        raise ModelConfigurationError(f"{folder} has no {name}; expected a folder that save_pretrained wrote")
    return folder / name


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of one safetensors file, or of all that an index names."""
    names = {WEIGHTS}
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        placed = read_keys(folder / INDEX, ModelConfigurationError).get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise ModelConfigurationError(f"{INDEX} has no weight_map; save the model again")
        names = {str(name) for name in placed.values()}
    weights: dict[str, Tensor] = {}
    for name in sorted(names):
        try:
            weights |= load_file(_existing(folder, name))
        except (SafetensorError, OSError) as error:
            raise ModelConfigurationError(f"{name} is damaged: {error}. Save the model again") from None
    return weights


def check_weights(weights: dict[str, Tensor], expected: dict[str, Tensor], folder: Path) -> None:
    """Check that weights have the names and shapes of a model.

    Raises:
        ModelConfigurationError: they have not; the message gives the first one that differs.
    """
    for name, tensor in expected.items():
        if name not in weights:
            raise ModelConfigurationError(f"{folder}: the weights lack {name}, which {CONFIG} asks for")
        if weights[name].shape != tensor.shape:
            shapes = f"{tuple(weights[name].shape)}; {CONFIG} asks for {tuple(tensor.shape)}"
            raise ModelConfigurationError(f"{folder}: the shape of {name} is {shapes}")
    extra = sorted(weights.keys() - expected.keys())
    if extra:
        raise ModelConfigurationError(f"{folder}: {CONFIG} has no place for {extra[0]} of the weights")
