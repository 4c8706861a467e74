"""Batches in memory whose keys follow the distribution that a prediction assumes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hugectr.data.batch import Batch, SparseInput
from predictor.recommender.hugectr.sections import Data
from predictor.recommender.workload.embedding import EmbeddingLayer
from predictor.recommender.workload.run import RecommenderRun

SEED = 20_260_101


def _slots(layer: EmbeddingLayer, num_ranks: int) -> dict[int, tuple[int, int]]:
    """Return the first key of every slot and how many keys it has; slots of one hash table share its rows evenly."""
    if layer.slot_rows:
        return {slot: (0, rows) for slot, rows in enumerate(layer.slot_rows)}
    ranges: dict[int, tuple[int, int]] = {}
    for table in layer.tables(num_ranks):
        rows = table.rows // len(table.slots)
        ranges.update({slot: (number * rows, rows) for number, slot in enumerate(table.slots)})
    return ranges


class KeySource:
    """Draws the keys of one embedding layer's slots."""

    def __init__(self, layer: EmbeddingLayer, num_ranks: int, exponent: float, random: np.random.Generator) -> None:
        """Prepare the slots' distributions: uniform, or p(key) ∝ (key + 1)^-exponent with keys counted in their slot.

        Args:
            layer: whose slots they are.
            num_ranks: of the run, which the room of a hash table depends on.
            exponent: 0 for uniform.
            random: numbers.
        """
        self._layer = layer
        self._ranges = _slots(layer, num_ranks)
        self._random = random
        self._cumulative: dict[int, NDArray[np.float64]] = {}
        if exponent:
            for rows in {rows for _, rows in self._ranges.values()}:
                sums = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
                self._cumulative[rows] = sums / sums[-1]

    def _lengths(self, slot: int, samples: int) -> NDArray[np.int32]:
        """Return how many keys each sample has: the hotness, or the whole numbers around it in its proportion."""
        below, rest = divmod(self._layer.hotness[slot], 1.0)
        return (below + (self._random.random(samples) < rest)).astype(np.int32)

    def _keys(self, slot: int, count: int) -> NDArray[np.int64]:
        first, rows = self._ranges[slot]
        if rows in self._cumulative:
            drawn = np.searchsorted(self._cumulative[rows], self._random.random(count), side="right")
            return first + np.minimum(drawn, rows - 1)
        return self._random.integers(first, first + rows, count)

    def draw(self, samples: int) -> SparseInput:
        """Return the keys of so many samples."""
        lengths = [self._lengths(slot, samples) for slot in range(self._layer.num_slots)]
        keys = [self._keys(slot, int(counts.sum())) for slot, counts in enumerate(lengths)]
        return SparseInput(torch.from_numpy(np.concatenate(keys)), torch.from_numpy(np.concatenate(lengths)))


def make_batches(run: RecommenderRun, data: Data, count: int, rank: int, device: torch.device) -> list[Batch]:
    """Return so many batches of one rank, which lie on the device; ranks draw apart.

    Labels and dense features are random, since their values do not change the time of a step.
    """
    random = np.random.default_rng((SEED, rank))
    samples = run.batch_per_gpu
    sources = {layer.input: KeySource(layer, run.num_gpus, run.keys.exponent, random) for layer in run.model.embeddings}
    batches = []
    for _ in range(count):
        label = torch.from_numpy(random.integers(0, 2, (samples, data.label.label_dim)).astype(np.float32))
        dense = torch.from_numpy(random.random((samples, data.dense.dense_dim), dtype=np.float32))
        sparse = {name: source.draw(samples) for name, source in sources.items()}
        moved = {name: SparseInput(drawn.keys.to(device), drawn.lengths.to(device)) for name, drawn in sparse.items()}
        batches.append(Batch(label.to(device), dense.to(device), moved))
    return batches
