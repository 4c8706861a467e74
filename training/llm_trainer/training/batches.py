"""Batches of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from llm_trainer.exceptions import TrainingError
from llm_trainer.models.transformer import IGNORED

INPUTS = ("input_ids", "attention_mask", "labels")


def model_inputs(batch: Any) -> dict[str, Tensor]:
    """Return the model's arguments of a batch; its tokens are the labels where it has none.

    Raises:
        TrainingError: it is no mapping with input_ids.
    """
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise TrainingError(
            f"a batch is a {type(batch).__name__}; expected a mapping with input_ids and labels, as "
            "LanguageModelingDataset gives"
        )
    arguments = {name: batch[name] for name in INPUTS if batch.get(name) is not None}
    return {"labels": arguments["input_ids"], **arguments}


def num_targets(batch: Any) -> int:
    """Return how many tokens of a batch are predicted: every label but a sample's first, -100 left out."""
    labels = model_inputs(batch)["labels"][:, 1:]
    return int((labels != IGNORED).sum())
