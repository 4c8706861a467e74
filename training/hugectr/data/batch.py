"""One rank's share of a batch."""

from __future__ import annotations

from typing import NamedTuple

import torch


class SparseInput(NamedTuple):
    """Keys of one sparse input, in the order of TorchRec's KeyedJaggedTensor: slot by slot, sample by sample.

    Attributes:
        keys: (number of keys,) int64. In data with slot sizes (Raw, Parquet) they count from 0 in every slot.
        lengths: (slots · samples,) int32, keys of each slot and sample.
    """

    keys: torch.Tensor
    lengths: torch.Tensor


class Batch(NamedTuple):
    """Samples of one step on one rank.

    Attributes:
        label: (samples, label_dim) float32.
        dense: (samples, dense_dim) float32.
        sparse: by the name of the sparse input (``top``).
    """

    label: torch.Tensor
    dense: torch.Tensor
    sparse: dict[str, SparseInput]

    @property
    def num_samples(self) -> int:
        """Return the samples of this rank."""
        return int(self.label.shape[0])
