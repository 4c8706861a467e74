"""One rank's shard of an embedding table."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
