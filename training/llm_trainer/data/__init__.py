"""From texts to batches: sources of documents, a file of tokens, samples, and torch's data loader."""

from __future__ import annotations

from llm_trainer.data.dataset import LanguageModelingDataset, create_dataloader
from llm_trainer.data.from_config import dataset_from_config, training_source, validation_source
from llm_trainer.data.sources import Source
from llm_trainer.data.token_file import TokenFile, tokenize_once

__all__ = [
    "LanguageModelingDataset",
    "Source",
    "TokenFile",
    "create_dataloader",
    "dataset_from_config",
    "tokenize_once",
    "training_source",
    "validation_source",
]
