"""Texts that a model is trained on, and how they become samples."""

from __future__ import annotations

from dataclasses import dataclass

from llm_trainer.config.section import Section


@dataclass
class DataConfig(Section):
    """Texts that a model is trained on, and how they become samples.

    Attributes:
        dataset_name: of a data set of the Hugging Face hub, or a local folder.
        dataset_config: its configuration; None: its only one.
        dataset_split: trained on.
        validation_split: evaluated on.
        text_column: holds the text.
        max_length: longest sample, in tokens; the length of every sample where sequences are packed.
        min_length: a text of fewer tokens is left out where sequences are not packed.
        vocab_size: of a tokenizer that is trained on these texts.
        pack_sequences: join texts into samples of max_length tokens.
        preprocessing_num_workers: processes that tokenise; 0: this one.
        dataloader_num_workers: processes that load batches; 0: this one.
        train_file: of your own texts, in place of the data set.
        validation_file: of your own texts, in place of the data set's validation split.
    """

    dataset_name: str | None = "wikitext"
    dataset_config: str | None = "wikitext-103-raw-v1"
    dataset_split: str = "train"
    validation_split: str | None = "validation"
    text_column: str = "text"
    max_length: int = 1024
    min_length: int = 10
    vocab_size: int = 50000
    pack_sequences: bool = True
    preprocessing_num_workers: int = 4
    dataloader_num_workers: int = 4
    train_file: str | None = None
    validation_file: str | None = None

    def validate(self) -> None:
        """Check every field.

        Raises:
            ModelConfigurationError: a value is not allowed, or there are no texts.
        """
        self._text("dataset_split", "text_column")
        optional = ("dataset_name", "dataset_config", "validation_split", "train_file", "validation_file")
        self._text(*optional, optional=True)
        self._whole("max_length", least=2)
        self._whole("vocab_size")
        self._whole("min_length", "preprocessing_num_workers", "dataloader_num_workers", least=0)
        self._flag("pack_sequences")
        if self.min_length > self.max_length:
            raise self._refuse("min_length", f"it must be at most max_length, {self.max_length}")
        if self.dataset_name is None and self.train_file is None:
            raise self._refuse("dataset_name", "and train_file is null too; name one of them")
