"""Where the keys of one table lie among the rows of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hugectr.embedding.initial_values import initial_rows
from hugectr.embedding.key_index import KeyIndex
from hugectr.embedding.records import Records, put, reset, take
from hugectr.embedding.update_rules import RowStates
from hugectr.exceptions import DataError


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """The keys of a slot whose size is known: ``count`` ones from ``start`` on, with the bound of their values."""

    slot: int
    start: int
    count: int
    bound: float

    @property
    def end(self) -> int:
        """Return the first key behind them."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a table that one rank holds.

    Attributes:
        name, layer: of the table and of its embedding layer.
        slots: that look up in the table.
        columns: of the table's rows.
        capacity: rows.
        parts, part: how many ranks share out the keys by key modulo parts, and which of them this is; 1 and 0 where
            keys are not shared out.
        known: keys of each slot, one slot after another; empty for hash tables.
        bound: of initial values of hash tables.
        is_copied: every rank holds all of it.
    """

    name: str
    layer: str
    slots: tuple[int, ...]
    columns: range
    capacity: int
    parts: int
    part: int
    known: tuple[SlotKeys, ...]
    bound: float
    is_copied: bool

    @property
    def width(self) -> int:
        """Return the columns held."""
        return len(self.columns)

    def owned(self, keys: torch.Tensor) -> torch.Tensor:
        """Return which keys the rank holds; keys count as unsigned, as in TorchRec's bucketisation."""
        if self.parts == 1:
            return torch.ones_like(keys, dtype=torch.bool)
        unsigned_of_negative = (1 << 64) % self.parts
        remainders = torch.remainder(keys, self.parts) + torch.where(keys < 0, unsigned_of_negative, 0)
        return torch.remainder(remainders, self.parts) == self.part


class RowSource(Protocol):
    """Rows of a table that outgrows its room; those in the room may be newer than theirs here."""

    def holds(self, keys: torch.Tensor) -> torch.Tensor:
        """Return which of the keys have a row."""

    def fetch(self, keys: torch.Tensor) -> tuple[torch.Tensor, Records]:
        """Return which of the keys have a row, and the records of those, in order."""

    def store(self, records: Records) -> None:
        """Keep records, each key once."""

    def everything(self) -> Records:
        """Return all records."""

    def clear(self) -> None:
        """Forget all records."""


class DirectRows:
    """Rows of keys of known slots: the row follows from the key.

    Attributes:
        first_row: of the store's.
        missing: keys without room; none ever.
    """

    def __init__(self, shard: Shard, first_row: int, table: RowStates, seed: int) -> None:
        """Fill the rows with their initial values."""
        self.shard = shard
        self.missing = 0
        self.table = table
        self.first_row = first_row
        self._start, self._end = shard.known[0].start, shard.known[-1].end
        self._first = first_row - (self._start + shard.parts - 1 - shard.part) // shard.parts
        for slot in shard.known:
            keys = self._keys_of(slot)
            table.weights[self._rows(keys)] = initial_rows(seed, shard.layer, keys, shard.columns, slot.bound)
        self.used = slice(first_row, first_row + shard.capacity)

    def _keys_of(self, slot: SlotKeys) -> torch.Tensor:
        keys = torch.arange(slot.start, slot.end, device=self.table.weights.device)
        return keys[keys % self.shard.parts == self.shard.part]

    def _rows(self, keys: torch.Tensor) -> torch.Tensor:
        local = keys if self.shard.parts == 1 else torch.div(keys, self.shard.parts, rounding_mode="floor")
        return local + self._first

    def rows_of(self, keys: torch.Tensor, slot_lengths: Sequence[int], *, insert: bool) -> torch.Tensor:
        """Return the int32 row of every key.

        Raises:
            DataError: a key lies outside its slot.
        """
        begin = 0
        for slot, length in zip(self.shard.known, slot_lengths, strict=True):
            self._check(slot, keys[begin : begin + length])
            begin += length
        return self._rows(keys).to(torch.int32)

    def _check(self, slot: SlotKeys, keys: torch.Tensor) -> None:
        if not len(keys):
            return
        low, high = (int(value) for value in torch.aminmax(keys))
        if low < slot.start or high >= slot.end:
            wrong = low if low < slot.start else high
            raise DataError(
                f"{self.shard.layer}, slot {slot.slot}: key {wrong - slot.start} is none of the {slot.count} that "
                "slot_size_array gives it; correct the sizes or the data"
            )

    def keys(self) -> torch.Tensor:
        """Return all keys, by row."""
        return torch.cat([self._keys_of(slot) for slot in self.shard.known])

    def export(self) -> Records:
        """Return the records of all rows."""
        slots = [torch.full_like(self._keys_of(slot), slot.slot) for slot in self.shard.known]
        return take(self.table, self.used, self.keys(), torch.cat(slots))

    def restore(self, keys: torch.Tensor, slots: torch.Tensor, records: Records) -> None:
        """Set the rows of keys to records.

        Raises:
            DataError: a key is none of the table.
        """
        outside = (keys < self._start) | (keys >= self._end)
        if bool(outside.any()):
            raise DataError(f"{self.shard.name}: key {int(keys[outside][0])} is none of its {self._end - self._start}")
        put(self.table, self._rows(keys), records)


class DirectSlots:
    """The slots of several tables of direct rows, for batches with as many keys of each slot: all in a few steps."""

    def __init__(self, tables: Sequence[DirectRows]) -> None:
        """Note where each slot's keys and rows begin."""
        slots = [slot for table in tables for slot in table.shard.known]
        device = tables[0].table.weights.device
        self._starts = torch.tensor([slot.start for slot in slots], device=device)
        self._ends = torch.tensor([slot.end for slot in slots], device=device)
        shifts = [table.first_row - table.shard.known[0].start for table in tables for _ in table.shard.known]
        self._shifts = torch.tensor(shifts, device=device)[:, None]

    def rows_of(self, keys: torch.Tensor, slot_lengths: Sequence[int]) -> torch.Tensor | None:
        """Return the int32 row of every key; None where slots have different numbers of keys, or a wrong one."""
        if not len(keys) or len(set(slot_lengths)) > 1:
            return None
        by_slot = keys.view(len(slot_lengths), -1)
        low, high = torch.aminmax(by_slot, dim=1)
        if bool(((low < self._starts) | (high >= self._ends)).any()):
            return None
        return (by_slot + self._shifts).view(-1).to(torch.int32)


def direct_slots(tables: Sequence[DirectRows | HashedRows]) -> DirectSlots | None:
    """Return the slots of tables whose rows are all direct and not shared out by key; None where some are not."""
    direct = [table for table in tables if isinstance(table, DirectRows) and table.shard.parts == 1]
    return DirectSlots(direct) if len(direct) == len(tables) else None


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
        self._slots = torch.zeros(shard.capacity, dtype=torch.int16) if len(shard.slots) > 1 else None
        self._are_rows_fresh = True

    @property
    def used(self) -> slice:
        """Return the rows that hold keys."""
        return slice(self._first, self._first + self._index.size)

    def keys(self) -> torch.Tensor:
        """Return the keys, by row."""
        return self._index.keys

    def new_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the keys that have no row, sorted, each once."""
        absent = keys[self._index.find(keys) < 0]
        return torch.unique(absent) if len(absent) else absent

    def insert(self, keys: torch.Tensor) -> None:
        """Give rows to keys that have none, each once: as they were stored, or with initial values."""
        first = self._index.size
        self.missing = max(self.missing, self._index.insert(keys))
        new = self._index.keys[first:]
        if not len(new):
            return
        rows = slice(self._first + first, self._first + self._index.size)
        initial = initial_rows(self._seed, self.shard.layer, new, self.shard.columns, self.shard.bound)
        self.table.weights[rows] = initial
        if not self._are_rows_fresh:
            reset(self.table, rows)
        if self.source is not None:
            is_stored, records = self.source.fetch(new)
            numbers = is_stored.nonzero().squeeze(1)
            put(self.table, numbers + rows.start, records)
            self._note_slots(numbers + first, torch.from_numpy(records["slot"].astype("i8")))

    def rows_of(self, keys: torch.Tensor, slot_lengths: Sequence[int], *, insert: bool) -> torch.Tensor:
        """Return the int32 row of every key; the store's zero row where a key has none."""
        rows = self._index.find(keys)
        absent = rows < 0
        if not bool(absent.any()):
            return rows + self._first
        if self.source is not None and not insert:
            self._load_stored(self.source, keys)
            rows = self._index.find(keys)
            absent = rows < 0
        if insert:
            self.insert(torch.unique(keys[absent]))
            rows, before = self._index.find(keys), absent
            absent = rows < 0
            if self._slots is not None:
                slots = torch.repeat_interleave(torch.tensor(self.shard.slots), torch.tensor(slot_lengths))
                is_new = before & ~absent
                self._note_slots(rows[is_new], slots[is_new.cpu()])
        return torch.where(absent, self._zero_row, rows + self._first)

    def _load_stored(self, source: RowSource, keys: torch.Tensor) -> None:
        """Load what is stored of a batch's keys, in place of all that is loaded where there is no room besides."""
        wanted = self.new_keys(keys)
        wanted = wanted[source.holds(wanted)]
        if self._index.size + len(wanted) > self.shard.capacity:
            self.unload()
            wanted = torch.unique(keys)
            wanted = wanted[source.holds(wanted)]
        self.insert(wanted)

    def _note_slots(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        if self._slots is not None:
            self._slots[rows.cpu().long()] = slots.to(torch.int16)

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
        return self.source.everything()

    def _loaded(self) -> Records:
        count = self._index.size
        slots = torch.full((count,), self.shard.slots[0]) if self._slots is None else self._slots[:count]
        return take(self.table, self.used, self.keys(), slots)

    def restore(self, keys: torch.Tensor, slots: torch.Tensor, records: Records) -> None:
        """Set the rows of keys to records; keys without a row get one.

        Raises:
            DataError: there is no room.
        """
        self.insert(self.new_keys(keys))
        rows = self._index.find(keys)
        if bool((rows < 0).any()):
            raise DataError(
                f"{self.shard.name}: {self._index.size + int((rows < 0).sum())} keys do not fit {self.shard.capacity} "
                "rows; raise max_vocabulary_size_per_gpu"
            )
        put(self.table, rows.long() + self._first, records)
        self._note_slots(rows, slots)


def make_rows(shard: Shard, first_row: int, table: RowStates, seed: int) -> DirectRows | HashedRows:
    """Return the rows of a shard, which begin at ``first_row`` of the store's."""
    return (DirectRows if shard.known else HashedRows)(shard, first_row, table, seed)
