"""Embedding layers and the tables that hold their rows.

A slot is one categorical feature. A distributed layer has one table for all its slots, whose rows ranks share out by
key. A localized layer keeps each slot on one rank: slot i on rank i modulo the number of ranks; where the slots' sizes
are known every slot has a table of its own, otherwise the slots of a rank share one.

Source: HugeCTR, "Configuration File Setup", Embedding Layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.recommender.workload.optimizer import Optimizer


class EmbeddingKind(StrEnum):
    """How slots lie on ranks; the values are HugeCTR's layer types."""

    DISTRIBUTED = "DistributedSlotSparseEmbeddingHash"
    LOCALIZED = "LocalizedSlotSparseEmbeddingHash"
    ONE_HOT = "LocalizedSlotSparseEmbeddingOneHot"


class Combiner(StrEnum):
    """How the rows of one slot and sample become one vector."""

    SUM = "sum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table, whole.

    Attributes:
        name: unique in the model.
        slots: of its layer, whose keys it holds.
        rows: that it has room for, over all ranks.
        hotness: lookups per sample of each of the slots, in the mean.
    """

    name: str
    layer: str
    slots: tuple[int, ...]
    rows: int
    width: int
    hotness: tuple[float, ...]

    @property
    def lookups_per_sample(self) -> float:
        """Return the keys that one sample looks up."""
        return sum(self.hotness)

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class EmbeddingLayer:
    """One embedding layer: (samples, slots) keys to (samples, slots, width).

    Attributes:
        name, input, output: of the layer, of the sparse input that it reads, and of its tensor.
        rows_per_gpu: room for so many rows on each GPU (max_vocabulary_size_per_gpu); 0 where slot sizes say it.
        slot_rows: keys of each slot; empty where not known.
        hotness: lookups per sample of each slot, in the mean.
        optimizer: of its rows; None: the dense network's.
    """

    name: str
    input: str
    output: str
    kind: EmbeddingKind
    num_slots: int
    width: int
    combiner: Combiner
    rows_per_gpu: int
    slot_rows: tuple[int, ...]
    hotness: tuple[float, ...]
    optimizer: Optimizer | None = None

    def tables(self, num_ranks: int) -> tuple[Table, ...]:
        """Return the tables on so many ranks, in the order of their first slots."""
        every = tuple(range(self.num_slots))
        if self.kind is EmbeddingKind.DISTRIBUTED:
            rows = self.rows_per_gpu * num_ranks if self.rows_per_gpu else sum(self.slot_rows)
            return (self._table(self.name, every, rows),)
        if self.slot_rows:
            return tuple(self._table(f"{self.name}.slot{slot}", (slot,), self.slot_rows[slot]) for slot in every)
        groups = [every[rank::num_ranks] for rank in range(min(num_ranks, self.num_slots))]
        return tuple(
            self._table(f"{self.name}.rank{rank}", slots, self.rows_per_gpu) for rank, slots in enumerate(groups)
        )

    def _table(self, name: str, slots: tuple[int, ...], rows: int) -> Table:
        return Table(name, self.name, slots, rows, self.width, tuple(self.hotness[slot] for slot in slots))
