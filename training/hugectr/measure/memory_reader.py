"""A reader whose batches are in memory already, so that a measured step reads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hugectr.data.batch import Batch


class MemoryReader:
    """Gives the same batches again and again."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        """Keep the batches of this rank."""
        self._batches = batches
        self._given = 0

    def next(self) -> Batch:
        """Return the next batch."""
        batch = self._batches[self._given % len(self._batches)]
        self._given += 1
        return batch

    def start(self) -> None:
        """Begin; there is nothing to read ahead."""

    def set_source(self, file_name: str = "") -> None:
        """Begin anew."""
        self._given = 0

    def close(self) -> None:
        """End."""
