"""Tokenizer and samples of a data configuration, made once and kept in files."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from llm_trainer.config import DataConfig
from llm_trainer.data import LanguageModelingDataset, dataset_from_config, training_source, validation_source
from llm_trainer.exceptions import ModelConfigurationError
from llm_trainer.tokenizer import BPETokenizer
from predictor.core.base.read_yaml import read_keys

log = logging.getLogger(__name__)
TOKENIZER_FILE = "tokenizer.json"


def prepare_tokenizer(config: DataConfig, folder: Path, *, is_forced: bool = False) -> BPETokenizer:
    """Return the tokenizer of a folder, trained on a configuration's texts where there is none.

    Every rank of a run reads the same texts and trains the same tokenizer.

    Args:
        config: texts and size of the vocabulary.
        folder: made where it is not there.
        is_forced: train it though there is one.

    Raises:
        DataError: the texts cannot be read, or the folder cannot be written.
    """
    if (folder / TOKENIZER_FILE).is_file() and not is_forced:
        log.info("tokenizer of %s; --force_retrain_tokenizer trains it again", folder)
        return BPETokenizer.from_pretrained(folder)
    tokenizer = BPETokenizer()
    tokenizer.train(training_source(config).texts(), config.vocab_size)
    if int(os.environ.get("RANK", "0")) == 0:
        tokenizer.save_pretrained(folder)
    log.info("trained a tokenizer of %d tokens", tokenizer.vocab_size)
    return tokenizer


def read_data_config(path: Path) -> DataConfig:
    """Read the data section of a run's configuration, or a file of its fields alone.

    Raises:
        ModelConfigurationError: it cannot be read, a key is unknown, or a value is not allowed.
    """
    content = read_keys(path, ModelConfigurationError)
    try:
        return DataConfig.from_dict(content["data"] if isinstance(content.get("data"), dict) else content)
    except ModelConfigurationError as error:
        raise ModelConfigurationError(f"{path}: {error}") from None


def evaluation_samples(config: DataConfig, tokenizer: BPETokenizer, max_length: int) -> LanguageModelingDataset:
    """Return the samples of a configuration's validation texts, or of its only texts where it names no others.

    Args:
        config: texts, lengths and packing.
        tokenizer: of the model.
        max_length: the model's; samples are cut to it.

    Raises:
        DataError: the texts cannot be read, or no sample is left.
    """
    source = validation_source(config) or training_source(config)
    return LanguageModelingDataset(
        source.texts(),
        tokenizer,
        min(config.max_length, max_length),
        config.pack_sequences,
        config.min_length,
        config.preprocessing_num_workers,
    )


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
