"""A set-associative cache of embedding rows in device memory, all of whose steps are tensor operations.

A key may lie in the ways of one set only, which its hash chooses, so that finding keys is one gather and one
comparison on CPUs and GPUs alike. A set that is full gives up its least recently or least frequently used rows; of
rows that were used equally often, the least recently used.
"""

from __future__ import annotations

from enum import StrEnum

import torch

WAYS = 32  # rows of a set; a power law's hot keys rarely meet in one set
FREQUENCY = 32  # bit from which a worth counts uses, under LFU; the bits below are the clock's
CLOCK = (1 << FREQUENCY) - 1
MULTIPLIER = -0x61C8864680B583EB  # 2^64 divided by the golden ratio, as a signed number: Knuth, TAOCP 6.4


class Eviction(StrEnum):
    """Which row of a full set makes room."""

    LRU = "lru"
    LFU = "lfu"


class DeviceCache:
    """Rows by tag; a tag is a key, or a key and its slot.

    Attributes:
        capacity: rows that it has room for; 0 caches nothing.
        evictions: rows that made room so far.
    """

    def __init__(self, capacity: int, width: int, tag_columns: int, eviction: Eviction, device: torch.device) -> None:
        """Make an empty cache of at most ``capacity`` rows, in sets of 32 ways or a few more."""
        self.sets = max(1, capacity // WAYS)
        self.ways = capacity // self.sets
        self.capacity = self.sets * self.ways
        self.evictions = 0
        self._eviction = eviction
        self._tags = torch.zeros(tag_columns, self.sets, self.ways, dtype=torch.int64, device=device)
        self._worth = torch.full((self.sets, self.ways), -1, dtype=torch.int64, device=device)  # -1: no row
        self._vectors = torch.zeros(self.capacity, width, device=device)
        self._clock = 0

    @property
    def rows(self) -> int:
        """Return the number of rows that it holds."""
        return int((self._worth >= 0).sum())

    def find(self, tags: torch.Tensor) -> torch.Tensor:
        """Return each tag's position, (n,) int64; -1 where the tag is not cached.

        Args:
            tags: (n, columns) int64.
        """
        if not self.capacity:
            return torch.full((len(tags),), -1, dtype=torch.int64, device=tags.device)
        sets = self._set_of(tags)
        same = self._tags[0][sets] == tags[:, :1]
        for column in range(1, tags.shape[1]):
            same &= self._tags[column][sets] == tags[:, column : column + 1]
        # Ways fill in order, so that of a set's ways with this tag the first one is a row, if any of them is.
        way = same.to(torch.uint8).argmax(dim=1, keepdim=True)
        positions = (sets * self.ways)[:, None] + way
        is_row = same.gather(1, way) & (self._worth.view(-1, 1)[positions[:, 0]] >= 0)
        return torch.where(is_row, positions, -1)[:, 0]

    def use(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows of positions, which may repeat, and note their use."""
        worth = self._worth.view(-1)
        self._clock += 1
        if self._eviction is Eviction.LRU:
            worth[positions] = self._clock
        else:
            worth.index_add_(0, positions, torch.full_like(positions, 1 << FREQUENCY))
            worth[positions] = (worth[positions] >> FREQUENCY << FREQUENCY) + self._clock
        return self._vectors[positions]

    def insert(self, tags: torch.Tensor, vectors: torch.Tensor, uses: torch.Tensor) -> None:
        """Insert rows that are not cached, the most used first, in place of rows that the last ``use`` did not name.

        Args:
            tags: (n, columns) int64, different ones.
            vectors: (n, width).
            uses: (n,) lookups of each in the request.
        """
        if not self.capacity or not len(tags):
            return
        order = uses.argsort(descending=True, stable=True)
        order = order[self._set_of(tags[order]).argsort(stable=True)]
        sets, counts = torch.unique_consecutive(self._set_of(tags[order]), return_counts=True)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(order), device=order.device) - starts.repeat_interleave(counts)
        group = torch.arange(len(sets), device=order.device).repeat_interleave(counts)
        worth = self._worth[sets]
        is_free = (worth < 0) | (worth & CLOCK != self._clock)
        victims = torch.where(is_free, worth, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
        fits = place < is_free.sum(dim=1)[group]
        positions = sets[group[fits]] * self.ways + victims[group[fits], place[fits]]
        self._put(positions, tags[order[fits]], vectors[order[fits]], uses[order[fits]])

    def _put(self, positions: torch.Tensor, tags: torch.Tensor, vectors: torch.Tensor, uses: torch.Tensor) -> None:
        worth = self._worth.view(-1)
        self.evictions += int((worth[positions] >= 0).sum())
        worth[positions] = self._clock if self._eviction is Eviction.LRU else (uses << FREQUENCY) + self._clock
        self._tags.view(-1, self.capacity)[:, positions] = tags.t()
        self._vectors[positions] = vectors

    def _set_of(self, tags: torch.Tensor) -> torch.Tensor:
        mixed = tags[:, 0] * MULTIPLIER
        for column in range(1, tags.shape[1]):
            mixed = (mixed ^ tags[:, column]) * MULTIPLIER
        return ((mixed >> 32) & 0x7FFFFFFF) % self.sets
