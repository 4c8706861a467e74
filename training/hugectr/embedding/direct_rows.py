"""Rows of slots whose sizes are known: the row follows from the key."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hugectr.embedding.initial_values import initial_rows
from hugectr.embedding.records import Records, put, take
from hugectr.embedding.shard import Shard, SlotKeys
from hugectr.embedding.update_rules import RowStates
from hugectr.exceptions import DataError


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
