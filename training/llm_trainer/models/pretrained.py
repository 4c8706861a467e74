"""Save and load models: safetensors for weights, JSON for the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from llm_trainer.config import ModelConfig
from llm_trainer.exceptions import ModelConfigurationError
from predictor.base.files import built_beside

if TYPE_CHECKING:
    from llm_trainer.models.transformer import TransformerLM

    Model = TypeVar("Model", bound=TransformerLM)

CONFIG, WEIGHTS = "config.json", "model.safetensors"
HEAD, TOKENS = "head.weight", "embed.tokens.weight"


def save(model: TransformerLM, folder: Path) -> None:
    """Write a model's configuration and weights to a folder; a tied head is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings and TOKENS in weights:
        weights.pop(HEAD, None)
    with built_beside(folder / WEIGHTS) as building:
        save_file(weights, building, metadata={"format": "pt"})
    model.config.save(folder / CONFIG)


def load(kind: type[Model], folder: Path) -> Model:
    """Return the model of a folder.

    Raises:
        ModelConfigurationError: files are missing or damaged, or do not fit each other.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelConfigurationError(f"{folder} has no {name}; expected a folder that save_pretrained wrote")
    config = ModelConfig.load(folder / CONFIG)
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ModelConfigurationError(f"{folder / WEIGHTS} cannot be read: {error}. Save the model again") from None
    if config.tie_word_embeddings and TOKENS in weights:
        weights.setdefault(HEAD, weights[TOKENS])
    model = kind(config)
    wrong = [
        name
        for name, tensor in model.state_dict().items()
        if name not in weights or weights[name].shape != tensor.shape
    ] + [name for name in weights if name not in model.state_dict()]
    if wrong:
        raise ModelConfigurationError(
            f"{folder / WEIGHTS} does not fit {CONFIG}: {', '.join(wrong[:3])}{' …' if wrong[3:] else ''}"
        )
    model.load_state_dict(weights)
    model.eval()
    return model
