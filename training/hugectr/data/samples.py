"""Samples as arrays, between a file's format and a rank's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hugectr.exceptions import DataError
from predictor.recommender.hugectr.sections import Data

Keys = NDArray[np.int64]
Lengths = NDArray[np.int32]
Floats = NDArray[np.float32]


class SlotRange(NamedTuple):
    """The slots of one sparse input among all slots of a sample.

    Attributes:
        first, last: numbers of its slots, the last one excluded.
        max_keys: of one sample, all its slots together (max_feature_num_per_sample).
        max_nnz: of one slot; None: as many as ``max_keys``.
    """

    name: str
    first: int
    last: int
    max_keys: int
    max_nnz: int | None


class SampleLayout(NamedTuple):
    """What one sample holds.

    Attributes:
        inputs: sparse inputs in the order of the configuration, which is that of the slots in the data.
        slot_sizes: keys of each slot count from 0 to below its size; empty where any key may come in any slot.
    """

    label_dim: int
    dense_dim: int
    inputs: tuple[SlotRange, ...]
    slot_sizes: tuple[int, ...]

    @property
    def num_slots(self) -> int:
        """Return the slots of all sparse inputs."""
        return self.inputs[-1].last

    def check_keys(self, path: Path, start: int, keys: Keys) -> None:
        """Check that keys of one per slot, (slots, samples), are of their slots; ``start`` is the first sample.

        Raises:
            DataError: a key is not; the message names the file, the sample and the slot.
        """
        sizes = np.array(self.slot_sizes, np.int64)[:, None]
        wrong = (keys < 0) | (keys >= sizes)
        if wrong.any():
            slot, sample = divmod(int(wrong.argmax()), wrong.shape[1])
            raise DataError(
                f"{path}, sample {start + sample}: the key of slot {slot} is {keys[slot, sample]}; its keys are from 0 "
                f"to below {self.slot_sizes[slot]} (slot_size_array)"
            )


def layout_of(data: Data) -> SampleLayout:
    """Return the layout that a data layer describes."""
    inputs: list[SlotRange] = []
    first = 0
    for sparse in data.sparse:
        last = first + sparse.slot_num
        inputs.append(SlotRange(sparse.top, first, last, sparse.max_feature_num_per_sample, sparse.max_nnz))
        first = last
    return SampleLayout(data.label.label_dim, data.dense.dense_dim, tuple(inputs), data.slot_size_array)


def local_keys(path: Path, start: int, layout: SampleLayout, keys: Keys, lengths: Lengths) -> Keys:
    """Return keys that are unique over slots as keys that count from 0 in every slot; ``start`` is the first sample.

    Raises:
        DataError: a key is not of its slot; the message names the file, the sample and the slot.
    """
    counts = lengths.sum(axis=1, dtype=np.int64)
    ends = np.cumsum(layout.slot_sizes, dtype=np.int64)
    starts = ends - layout.slot_sizes
    local = keys - np.repeat(starts, counts)
    wrong = (local < 0) | (local >= np.repeat(np.array(layout.slot_sizes, np.int64), counts))
    if wrong.any():
        place = int(wrong.argmax())
        cell = int(np.searchsorted(np.cumsum(lengths.reshape(-1), dtype=np.int64), place, side="right"))
        slot, sample = divmod(cell, lengths.shape[1])
        raise DataError(
            f"{path}, sample {start + sample}: a key of slot {slot} is {keys[place]}; its keys are from {starts[slot]} "
            f"to below {ends[slot]} (slot_size_array, slot after slot)"
        )
    return local


class Samples(NamedTuple):
    """Some samples, whole.

    Attributes:
        label: (samples, label_dim).
        dense: (samples, dense_dim).
        keys: slot by slot, sample by sample, as in TorchRec's KeyedJaggedTensor.
        lengths: (slots, samples), keys of each.
    """

    label: Floats
    dense: Floats
    keys: Keys
    lengths: Lengths


def one_hot(label: Floats, dense: Floats, keys: Keys) -> Samples:
    """Return samples of one key per slot; ``keys`` is (slots, samples)."""
    return Samples(label, dense, keys.reshape(-1), np.ones(keys.shape, np.int32))


class SampleFile(Protocol):
    """One data file, read by ranges of its samples."""

    @property
    def num_samples(self) -> int:
        """Return the samples that it holds."""

    def read(self, start: int, stop: int) -> Samples:
        """Return the samples from ``start`` to before ``stop``."""


def joined(parts: Sequence[Samples]) -> Samples:
    """Return samples of several files as one value."""
    if len(parts) == 1:
        return parts[0]
    # Where each slot's keys begin in every part; slots of all parts are then laid side by side.
    ends = [np.cumsum(part.lengths.sum(axis=1, dtype=np.int64)) for part in parts]
    keys = [
        part.keys[0 if slot == 0 else end[slot - 1] : end[slot]]
        for slot in range(parts[0].lengths.shape[0])
        for part, end in zip(parts, ends, strict=True)
    ]
    return Samples(
        np.concatenate([part.label for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate(keys),
        np.concatenate([part.lengths for part in parts], axis=1),
    )
