"""Rows of a table on disk: those of a table that outgrows its room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hugectr.embedding.key_index import KeyIndex
from hugectr.embedding.records import Records

MOST_ROWS = (1 << 31) - 1  # row numbers are int32
FIRST_ROWS = 1 << 10


class StoredRows:
    """Records in a file, found by key. The file is scratch: it begins empty and ends with its folder."""

    def __init__(self, path: Path, record: np.dtype[Any]) -> None:
        """Make the file."""
        self._path = path
        self._record = record
        path.parent.mkdir(parents=True, exist_ok=True)
        self.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._index = KeyIndex(MOST_ROWS, torch.device("cpu"))
        self._path.write_bytes(b"")
        self._rows: Records = np.empty(0, self._record)

    def __len__(self) -> int:
        """Return the number of records."""
        return self._index.size

    def holds(self, keys: torch.Tensor) -> torch.Tensor:
        """Return which keys have a record."""
        return (self._index.find(keys.cpu()) >= 0).to(keys.device)

    def fetch(self, keys: torch.Tensor) -> tuple[torch.Tensor, Records]:
        """Return which keys have a record, and these records in the order of the keys."""
        rows = self._index.find(keys.cpu())
        is_stored = rows >= 0
        return is_stored.to(keys.device), self._rows[rows[is_stored].numpy()]

    def store(self, records: Records) -> None:
        """Keep records, each key once, in place of older ones."""
        keys = torch.from_numpy(np.ascontiguousarray(records["key"]))
        self._index.insert(keys[self._index.find(keys) < 0])
        if self._index.size > len(self._rows):
            length = max(2 * len(self._rows), self._index.size, FIRST_ROWS)
            with self._path.open("r+b") as file:
                file.truncate(length * self._record.itemsize)
            self._rows = np.memmap(self._path, self._record, "r+")
        if len(records):
            self._rows[self._index.find(keys).numpy()] = records

    def everything(self) -> Records:
        """Return all records; changes of them go to the file."""
        return self._rows[: self._index.size]
