"""Rows of a table on disk: those of a table that outgrows its room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hugectr.embedding.key_index import KeyIndex
from hugectr.embedding.records import Records
from hugectr.exceptions import HugeCtrError

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
        self._path.unlink(missing_ok=True)  # not truncated: records that were handed out are mapped still
        self._path.touch()
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
        """Keep records, each key once, in place of older ones.

        Raises:
            HugeCtrError: the disk has no room.
        """
        keys = torch.from_numpy(np.ascontiguousarray(records["key"]))
        self._index.insert(keys[self._index.find(keys) < 0])
        if self._index.size > len(self._rows):
            length = max(2 * len(self._rows), self._index.size, FIRST_ROWS)
            self._allocate(length * self._record.itemsize)
            self._rows = np.memmap(self._path, self._record, "r+")
        if len(records):
            self._rows[self._index.find(keys).numpy()] = records

    def _allocate(self, size_bytes: int) -> None:
        """Lengthen the file by bytes that the disk has: to write to a mapped one that it has not ends the process."""
        try:
            with self._path.open("r+b") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
                else:
                    file.truncate(size_bytes)
        except OSError as error:
            raise HugeCtrError(
                f"{self._path} cannot grow to {size_bytes} bytes: {error.strerror}; name a temp_embedding_dir with room"
            ) from None

    def everything(self) -> Records:
        """Return all records; changes of them go to the file."""
        return self._rows[: self._index.size]
