"""Index from arbitrary 64-bit keys to consecutive row numbers.

While keys are small, a dense array of row numbers indexed by key answers with one gather. Otherwise an open-addressing
hash table with linear probing does, whose probes run for all keys of a batch at once.
"""

from __future__ import annotations

import torch

DENSE_ENTRIES = 1 << 24  # 64 MiB of row numbers
SMALLEST = 1 << 10
MAX_LOAD = 0.5
FIBONACCI = -7046029254386353131  # 2^64 / golden ratio as int64: Knuth's multiplicative hashing
NO_ROW = -1


class KeyIndex:
    """Rows of keys, numbered from 0 in the order of insertion; at most ``capacity``."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        """Make an index without keys."""
        self.capacity = capacity
        self.device = device
        self._keys = torch.empty(0, dtype=torch.int64, device=device)  # by row; longer than it is full
        self.size = 0
        self._dense: torch.Tensor | None = self._no_rows(0)
        self._slot_rows = self._no_rows(0)
        self._slot_keys = torch.empty(0, dtype=torch.int64, device=device)

    @property
    def keys(self) -> torch.Tensor:
        """Return the keys, by row."""
        return self._keys[: self.size]

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the rows of keys as int32; -1 where a key has none."""
        if self._dense is None:
            return self._probe(keys)
        if not len(keys) or not len(self._dense):
            return torch.full_like(keys, NO_ROW, dtype=torch.int32)
        low, high = torch.aminmax(keys)
        if int(low) >= 0 and int(high) < len(self._dense):
            return self._dense.index_select(0, keys)
        inside = (keys >= 0) & (keys < len(self._dense))
        return torch.where(inside, self._dense.index_select(0, torch.where(inside, keys, 0)), NO_ROW)

    def insert(self, keys: torch.Tensor) -> int:
        """Give rows to keys that have none; each key once.

        Returns:
            The number of keys, the last ones, for which there was no room.
        """
        kept = min(len(keys), self.capacity - self.size)
        if kept:
            new = keys[:kept]
            rows = torch.arange(self.size, self.size + kept, dtype=torch.int32, device=self.device)
            self._append(new)
            if self._dense is not None:
                self._insert_dense(new, rows)
            else:
                self._insert_hashed(new, rows)
        return len(keys) - kept

    def _no_rows(self, entries: int) -> torch.Tensor:
        return torch.full((entries,), NO_ROW, dtype=torch.int32, device=self.device)

    def _append(self, keys: torch.Tensor) -> None:
        end = self.size + len(keys)
        if end > len(self._keys):
            longer = torch.empty(min(self.capacity, max(2 * len(self._keys), end, SMALLEST)), dtype=torch.int64)
            self._keys = torch.cat([self.keys, longer[self.size :].to(self.device)])
        self._keys[self.size : end] = keys
        self.size = end

    def _insert_dense(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        assert self._dense is not None
        low, high = (int(value) for value in torch.aminmax(keys))
        if low < 0 or high >= DENSE_ENTRIES:
            self._dense = None
            self._insert_hashed(keys, rows)
            return
        if high >= len(self._dense):
            length = min(DENSE_ENTRIES, max(2 * len(self._dense), high + 1, SMALLEST))
            self._dense = torch.cat([self._dense, self._no_rows(length - len(self._dense))])
        self._dense[keys] = rows

    def _insert_hashed(self, keys: torch.Tensor, rows: torch.Tensor) -> None:
        if self.size > MAX_LOAD * len(self._slot_rows):
            slots = SMALLEST
            while self.size > MAX_LOAD / 2 * slots:
                slots *= 2
            self._slot_rows = self._no_rows(slots)
            self._slot_keys = torch.zeros(slots, dtype=torch.int64, device=self.device)
            keys = self.keys
            rows = torch.arange(self.size, dtype=torch.int32, device=self.device)
        slot = self._home(keys)
        while len(keys):
            empty = self._slot_rows.index_select(0, slot) == NO_ROW
            self._slot_rows[slot[empty]] = rows[empty]  # of several keys at one slot one stays
            placed = self._slot_rows.index_select(0, slot) == rows
            self._slot_keys[slot[placed]] = keys[placed]
            left = ~placed
            keys, rows = keys[left], rows[left]
            slot = (slot[left] + 1) & (len(self._slot_rows) - 1)

    def _home(self, keys: torch.Tensor) -> torch.Tensor:
        bits = len(self._slot_rows).bit_length() - 1
        return ((keys * FIBONACCI) >> (64 - bits)) & (len(self._slot_rows) - 1)

    def _probe(self, keys: torch.Tensor) -> torch.Tensor:
        rows = self._slot_rows.index_select(0, slot := self._home(keys))
        searching = ((rows != NO_ROW) & (self._slot_keys.index_select(0, slot) != keys)).nonzero().squeeze(1)
        slot = slot[searching]
        while len(searching):
            slot = (slot + 1) & (len(self._slot_rows) - 1)
            row = self._slot_rows.index_select(0, slot)
            rows[searching] = row
            wrong = (row != NO_ROW) & (self._slot_keys.index_select(0, slot) != keys[searching])
            searching, slot = searching[wrong], slot[wrong]
        return rows
