"""Data sets of a DataConfig: its texts, and samples by a tokenizer."""

from __future__ import annotations

from pathlib import Path

from llm_trainer.config import DataConfig
from llm_trainer.data.dataset import LanguageModelingDataset
from llm_trainer.data.sources import Source, splits_of
from llm_trainer.data.token_file import tokenize_once
from llm_trainer.exceptions import DataError
from llm_trainer.tokenizer import BPETokenizer


def training_source(config: DataConfig) -> Source:
    """Return the texts that are trained on: of train_file, else of the data set.

    Raises:
        DataError: there is no such file or folder.
    """
    if config.train_file is not None:
        return Source.local(config.train_file, config.text_column)
    if config.dataset_name is None:
        raise DataError("dataset_name and train_file are null; name one of them")
    return Source.named(config.dataset_name, config.dataset_config, config.dataset_split, config.text_column)


def validation_source(config: DataConfig) -> Source | None:
    """Return the texts that are evaluated on; None where the configuration names none.

    Raises:
        DataError: there is no such file or folder.
    """
    if config.validation_file is not None:
        return Source.local(config.validation_file, config.text_column)
    if config.train_file is not None or config.dataset_name is None or config.validation_split is None:
        return None
    if Path(config.dataset_name).expanduser().is_dir() and config.validation_split not in splits_of(
        config.dataset_name
    ):
        return None
    return Source.named(config.dataset_name, config.dataset_config, config.validation_split, config.text_column)


def dataset_from_config(
    config: DataConfig, source: Source, tokenizer: BPETokenizer, token_file: str | Path
) -> LanguageModelingDataset:
    """Return the samples of a source, tokenised unless the token file is there for the same inputs and tokenizer.

    Args:
        config: lengths, packing and processes.
        source: of the texts.
        tokenizer: trained.
        token_file: path of its JSON file.

    Raises:
        DataError: the texts cannot be read, or no sample is left.
    """
    return LanguageModelingDataset.from_token_file(
        tokenize_once(token_file, source, tokenizer, config.preprocessing_num_workers),
        max_length=config.max_length,
        pack_sequences=config.pack_sequences,
        min_length=config.min_length,
    )
