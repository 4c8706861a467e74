"""Samples and data layers made by hand, for tests of data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hugectr.data.samples import Samples
from predictor.recommender.hugectr.sections import Data


def some_samples(
    num_samples: int, num_slots: int, max_nnz: int = 1, *, label_dim: int = 1, dense_dim: int = 3, seed: int = 0,
    vocabulary: int = 1000, min_nnz: int = 1,
) -> Samples:  # fmt: skip
    """Return samples of random content."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(min_nnz, max_nnz, (num_slots, num_samples), dtype=np.int32, endpoint=True)
    return Samples(
        rng.integers(0, 2, (num_samples, label_dim)).astype(np.float32),
        rng.random((num_samples, dense_dim), dtype=np.float32),
        rng.integers(0, vocabulary, int(lengths.sum()), dtype=np.int64),
        lengths,
    )


def data_layer(source: Path | str, slots: dict[str, int], **changes: Any) -> Data:
    """Return a data layer whose sparse inputs have so many slots."""
    sparse = [
        {"top": name, "type": "DistributedSlot", "max_feature_num_per_sample": 100, "slot_num": number}
        for name, number in slots.items()
    ]
    content: dict[str, Any] = {
        "type": "Data", "source": str(source), "label": {"label_dim": 1}, "dense": {"dense_dim": 3}, "sparse": sparse,
    }  # fmt: skip
    return Data.model_validate(content | changes)


def same(first: Samples, second: Samples) -> bool:
    """Return whether both hold the same."""
    return (
        np.array_equal(first.label, second.label)
        and np.array_equal(first.dense, second.dense)
        and np.array_equal(first.keys, second.keys)
        and np.array_equal(first.lengths, second.lengths)
    )
