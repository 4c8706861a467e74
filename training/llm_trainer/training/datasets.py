"""The samples of a data configuration, tokenised once to files that are mapped into memory."""

from __future__ import annotations

from pathlib import Path

from llm_trainer.config import DataConfig
from llm_trainer.data import LanguageModelingDataset, dataset_from_config, training_source, validation_source
from llm_trainer.tokenizer import BPETokenizer


def make_datasets(
    config: DataConfig, tokenizer: BPETokenizer, folder: str | Path
) -> tuple[LanguageModelingDataset, LanguageModelingDataset | None]:
    """Return the samples to train on and, where the configuration names validation texts, those to evaluate on.

    Args:
        config: texts, lengths and packing.
        tokenizer: trained.
        folder: of the tokens; they are used again for the same texts and tokenizer.

    Raises:
        DataError: the texts cannot be read, or no sample is left.
        TokenizerNotTrainedException: the tokenizer has no vocabulary.
    """
    train = dataset_from_config(config, training_source(config), tokenizer, Path(folder) / "train.json")
    source = validation_source(config)
    if source is None:
        return train, None
    return train, dataset_from_config(config, source, tokenizer, Path(folder) / "validation.json")
