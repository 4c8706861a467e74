"""Rows of keys of any size, which keys claim as they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from hugectr.embedding.initial_values import initial_rows
from hugectr.embedding.key_index import KeyIndex
from hugectr.embedding.records import Records, put, reset, take
from hugectr.embedding.shard import Shard
from hugectr.embedding.update_rules import RowStates
from hugectr.exceptions import DataError


class RowSource(Protocol):
    """Rows of a table that outgrows its room; those in the room may be newer than theirs here."""

    def holds(self, keys: torch.Tensor) -> torch.Tensor:
        """Return which of the keys have a row."""

    def fetch(self, keys: torch.Tensor) -> tuple[torch.Tensor, Records]:
        """Return which of the keys have a row, and the records of those, in order."""

    def store(self, records: Records) -> None:
        """Keep records, each key once."""

    def everything(self) -> Records:
        """Return all records; changes of them are kept."""

    def clear(self) -> None:
        """Forget all records."""


class HashedRows:
    """Rows of keys of any size; a key gets the next free row when a training batch first brings it.

    Attributes:
        missing: the most keys of a batch that found no room; they look up zeros.
        source: rows that are not loaded, where keys are looked for before they begin anew.
    """

    def __init__(self, shard: Shard, first_row: int, table: RowStates, seed: int) -> None:
        """Begin without keys."""
        self.shard = shard
        self.missing = 0
        self.source: RowSource | None = None
        self.table = table
        self._first = first_row
        self._zero_row = len(table.weights) - 1
        self._seed = seed
        self._index = KeyIndex(shard.capacity, table.weights.device)
        # Which slot brought a key; files of localized layers name it.
        self._slots = torch.zeros(shard.capacity, dtype=torch.int16, device=table.weights.device)
        self._are_rows_fresh = True

    @property
    def used(self) -> slice:
        """Return the rows that hold keys."""
        return slice(self._first, self._first + self._index.size)

    def keys(self) -> torch.Tensor:
        """Return the keys, by row."""
        return self._index.keys

    def new_keys(self, keys: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys that have no row, sorted, each once, and the slot of each."""
        absent = self._index.find(keys) < 0
        if not bool(absent.any()):
            return keys[:0], slots[:0]
        new, numbers = torch.unique(keys[absent], return_inverse=True)
        slots_of_new = torch.empty_like(new)
        slots_of_new[numbers] = slots[absent]
        return new, slots_of_new

    def slots_of(self, slot_lengths: Sequence[int]) -> torch.Tensor:
        """Return the slot of each key, where so many come from each slot."""
        device = self.table.weights.device
        slots, lengths = (torch.tensor(values, device=device) for values in (self.shard.slots, slot_lengths))
        return torch.repeat_interleave(slots, lengths)

    def insert(self, keys: torch.Tensor, slots: torch.Tensor) -> None:
        """Give rows to keys that have none, each once: as they were stored, or with initial values."""
        first = self._index.size
        self.missing = max(self.missing, self._index.insert(keys))
        new = self._index.keys[first:]
        if not len(new):
            return
        rows = slice(self._first + first, self._first + self._index.size)
        initial = initial_rows(self._seed, self.shard.layer, new, self.shard.columns, self.shard.bound)
        self.table.weights[rows] = initial
        self._slots[first : self._index.size] = slots[: len(new)]
        if not self._are_rows_fresh:
            reset(self.table, rows)
        if self.source is not None:
            is_stored, records = self.source.fetch(new)
            self._make_up(records)
            numbers = is_stored.nonzero().squeeze(1)
            put(self.table, numbers + rows.start, records)
            self._slots[numbers + first] = torch.from_numpy(records["slot"].astype("i2")).to(self._slots.device)

    def rows_of(self, keys: torch.Tensor, slot_lengths: Sequence[int], *, insert: bool) -> torch.Tensor:
        """Return the int32 row of every key; the store's zero row where a key has none."""
        rows = self._index.find(keys)
        if not bool((rows < 0).any()):
            return rows + self._first
        if insert:
            slots = self.slots_of(slot_lengths)
            new, slots_of_new = self.new_keys(keys, slots)
            if self.is_too_full_for(len(new)):
                self.unload()
                new, slots_of_new = self.new_keys(keys, slots)
            self.insert(new, slots_of_new)
            rows = self._index.find(keys)
        elif self.source is not None:
            self.load(torch.unique(keys))
            rows = self._index.find(keys)
        return torch.where(rows < 0, self._zero_row, rows + self._first)

    def is_too_full_for(self, count: int) -> bool:
        """Return whether rows must be left to the source before so many keys get theirs."""
        return self.source is not None and self._index.size + count > self.shard.capacity

    def stored(self, keys: torch.Tensor) -> torch.Tensor:
        """Return those of the keys that the source has."""
        return keys[:0] if self.source is None else keys[self.source.holds(keys)]

    def load(self, keys: torch.Tensor) -> None:
        """Load what is stored of keys, each given once, in place of all that is loaded where there is no room besides.

        Keys for which there is no room at all stay where they are.
        """
        wanted = self.stored(keys)
        new = wanted[self._index.find(wanted) < 0]
        if self.is_too_full_for(len(new)):
            self.unload()
            new = wanted[: self.shard.capacity]
        self.insert(new, torch.zeros_like(new))  # the records know their slots

    def clear(self) -> None:
        """Forget all keys and rows."""
        self._index = KeyIndex(self.shard.capacity, self.table.weights.device)
        self._are_rows_fresh = False
        self.missing = 0

    def unload(self) -> None:
        """Leave all rows to the source, and begin without keys."""
        assert self.source is not None
        self.source.store(self._loaded())
        self.clear()

    def export(self) -> Records:
        """Return the records of all rows, loaded or not."""
        if self.source is None:
            return self._loaded()
        self.source.store(self._loaded())
        records = self.source.everything()
        self._make_up(records)
        return records

    def _make_up(self, records: Records) -> None:
        """Give records of stored rows the updates that came while they waited."""
        if self.table.missed_steps is not None:
            self.table.missed_steps.make_up(records)

    def _loaded(self) -> Records:
        return take(self.table, self.used, self.keys(), self._slots[: self._index.size])

    def restore(self, keys: torch.Tensor, slots: torch.Tensor, records: Records) -> None:
        """Set the rows of keys to records; keys without a row get one.

        Raises:
            DataError: there is no room.
        """
        self.insert(*self.new_keys(keys, slots))
        rows = self._index.find(keys)
        if bool((rows < 0).any()):
            raise DataError(
                f"{self.shard.name}: {self._index.size + int((rows < 0).sum())} keys do not fit {self.shard.capacity} "
                "rows; raise max_vocabulary_size_per_gpu"
            )
        put(self.table, rows.long() + self._first, records)
