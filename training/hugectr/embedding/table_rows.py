"""Where the keys of one table lie among the rows of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from hugectr.embedding.initial_values import initial_rows
from hugectr.embedding.key_index import KeyIndex
from hugectr.exceptions import DataError


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a table that one rank holds.

    Attributes:
        name, layer: of the table and of its embedding layer.
        columns: of the table's rows.
        num_slots: that look up in the table.
        capacity: rows.
        parts, part: how many ranks share out the keys by key modulo parts, and which of them this is; (1, 0) where
            keys are not shared out.
        bounds: (first key, keys, bound of initial values) of each run of keys; a run without end for hash tables.
    """

    name: str
    layer: str
    columns: range
    num_slots: int
    capacity: int
    parts: int
    part: int
    bounds: tuple[tuple[int, int, float], ...]
    is_hashed: bool

    @property
    def width(self) -> int:
        """Return the columns held."""
        return len(self.columns)


class TableRows(Protocol):
    """Rows of one shard in its store; row numbers are the store's."""

    shard: Shard
    missing: int

    def rows_of(self, keys: torch.Tensor, *, insert: bool) -> torch.Tensor:
        """Return the int32 row of every key; the store's zero row where a key has none."""

    def used(self) -> slice:
        """Return the rows that hold keys."""

    def keys(self) -> torch.Tensor:
        """Return the keys of the used rows, in order."""


class DirectRows:
    """Rows of keys that count from 0: the row follows from the key."""

    def __init__(self, shard: Shard, first_row: int, weights: torch.Tensor, seed: int) -> None:
        """Fill the rows with their initial values."""
        self.shard = shard
        self.missing = 0
        self._first = first_row
        for start, count, bound in shard.bounds:
            keys = torch.arange(start, start + count, device=weights.device)
            keys = keys[keys % shard.parts == shard.part]
            weights[self._rows(keys)] = initial_rows(seed, shard.layer, keys, shard.columns, bound)

    def _rows(self, keys: torch.Tensor) -> torch.Tensor:
        local = keys if self.shard.parts == 1 else torch.div(keys, self.shard.parts, rounding_mode="floor")
        return local - (self.shard.bounds[0][0] // self.shard.parts) + self._first

    def rows_of(self, keys: torch.Tensor, *, insert: bool) -> torch.Tensor:
        """Return the row of every key.

        Raises:
            DataError: a key lies outside the table.
        """
        if len(keys):
            first, (last_start, last_count, _) = self.shard.bounds[0][0], self.shard.bounds[-1]
            low, high = (int(value) for value in torch.aminmax(keys))
            if low < first or high >= last_start + last_count:
                wrong = low if low < first else high
                raise DataError(
                    f"{self.shard.name}: key {wrong - first} is outside the {last_start + last_count - first} keys "
                    "that slot_size_array gives it; correct the sizes or the data"
                )
        return self._rows(keys).to(torch.int32)

    def used(self) -> slice:
        """Return all rows."""
        return slice(self._first, self._first + self.shard.capacity)

    def keys(self) -> torch.Tensor:
        """Return all keys."""
        start = self.shard.bounds[0][0]
        end = self.shard.bounds[-1][0] + self.shard.bounds[-1][1]
        keys = torch.arange(start, end)
        return keys[keys % self.shard.parts == self.shard.part]


class HashedRows:
    """Rows of keys of any size; a key gets the next free row when a training batch first brings it.

    Attributes:
        missing: keys that found no room so far; they look up zeros.
    """

    def __init__(self, shard: Shard, first_row: int, weights: torch.Tensor, seed: int) -> None:
        """Begin without keys."""
        self.shard = shard
        self.missing = 0
        self._first = first_row
        self._weights = weights
        self._zero_row = len(weights) - 1
        self._seed = seed
        self.index = KeyIndex(shard.capacity, weights.device)

    def new_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the keys that have no row, sorted, each once."""
        absent = keys[self.index.find(keys) < 0]
        return torch.unique(absent) if len(absent) else absent

    def insert(self, keys: torch.Tensor) -> None:
        """Give rows with initial values to keys that have none, each once."""
        first = self.index.size
        self.missing += self.index.insert(keys)
        new = self.index.keys[first:]
        if len(new):
            bound = self.shard.bounds[0][2]
            rows = initial_rows(self._seed, self.shard.layer, new, self.shard.columns, bound)
            self._weights[self._first + first : self._first + self.index.size] = rows

    def rows_of(self, keys: torch.Tensor, *, insert: bool) -> torch.Tensor:
        """Return the row of every key."""
        rows = self.index.find(keys)
        absent = rows < 0
        if not bool(absent.any()):
            return rows + self._first
        if insert:
            self.insert(torch.unique(keys[absent]))
            rows = self.index.find(keys)
            absent = rows < 0
        return torch.where(absent, self._zero_row, rows + self._first)

    def used(self) -> slice:
        """Return the rows with keys."""
        return slice(self._first, self._first + self.index.size)

    def keys(self) -> torch.Tensor:
        """Return the keys by row."""
        return self.index.keys


def make_rows(shard: Shard, first_row: int, weights: torch.Tensor, seed: int) -> DirectRows | HashedRows:
    """Return the rows of a shard, which begin at ``first_row`` of the store's weights."""
    return (HashedRows if shard.is_hashed else DirectRows)(shard, first_row, weights, seed)
