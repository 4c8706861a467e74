"""Data sets of the Hugging Face hub, through its library ``datasets``, which is imported when a name needs it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from llm_trainer.exceptions import DataError

INSTEAD = "Or give a local file, folder or pattern: train_file in DataConfig, a path in place of the name"


def hub_texts(name: str, config: str | None, split: str, text_column: str) -> Iterator[str]:
    """Yield the documents of a data set on the hub.

    Raises:
        DataError: ``datasets`` is not installed, the data set cannot be loaded, or a row has no text.
    """
    table = loaded(name, config, split)
    if text_column not in table.column_names:
        columns = ", ".join(table.column_names)
        raise DataError(f"{name} has no column {text_column}; text_column must be one of {columns}")
    for number, row in enumerate(table.select_columns([text_column])):
        if not isinstance(row[text_column], str):
            raise DataError(f"{name}, row {number}: {text_column} is {row[text_column]!r}; expected text")
        yield row[text_column]


def hub_fingerprint(name: str, config: str | None, split: str) -> str:
    """Return the library's own mark of a data set, which differs where its content does; errors as above."""
    return f"{name} {config} {split} {loaded(name, config, split)._fingerprint}"


@cache
def loaded(name: str, config: str | None, split: str) -> Any:
    """Return a split of a data set, which the library keeps on disk."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"data set {name} would be read from the Hugging Face hub, whose library is not installed; "
            f"pip install datasets. {INSTEAD}"
        ) from None
    try:
        return datasets.load_dataset(name, config, split=split)
    # The library's errors of a missing data set, configuration or split are these; being offline is an OSError.
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"data set {name} cannot be loaded from the Hugging Face hub: {reason}. {INSTEAD}") from None
