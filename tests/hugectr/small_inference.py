"""A small model for inference with files of random weights, and its predictions in plain numpy."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SLOTS, WIDTH, DENSE, HIDDEN = 3, 4, 2, 5
COLUMNS = SLOTS * WIDTH + DENSE


class Model(NamedTuple):
    """Files and the weights in them; ``rows`` by key, or by (slot, key)."""

    config: Path
    rows: dict[Any, np.ndarray]
    weights: list[np.ndarray]
    combiner: int

    def predictions(self, dense: list[float], keys: list[int], row_ptrs: list[int]) -> list[float]:
        """Return the predictions of a request, slot by slot."""
        by_slot = any(isinstance(key, tuple) for key in self.rows)
        pooled = []
        for number, (start, end) in enumerate(pairwise(row_ptrs)):
            tags = [(number % SLOTS, key) if by_slot else key for key in keys[start:end]]
            total = sum((self.rows.get(tag, np.zeros(WIDTH)) for tag in tags), np.zeros(WIDTH))
            pooled.append(total / max(1, len(tags)) if self.combiner else total)
        features = np.concatenate((np.reshape(pooled, (-1, SLOTS * WIDTH)), np.reshape(dense, (-1, DENSE))), axis=1)
        kernel, bias, last, last_bias = self.weights
        hidden = np.maximum(features @ kernel + bias, 0.0)
        return list((1.0 / (1.0 + np.exp(-(hidden @ last + last_bias)))).ravel())


def content(
    dense_file: Path, sparse_file: Path, *, localized: bool = False, combiner: int = 0, **clause: Any
) -> dict[str, Any]:
    """Return a configuration for inference: embeddings and dense features to one hidden layer."""
    slot_type = "LocalizedSlot" if localized else "DistributedSlot"
    return {
        "inference": {
            "max_batchsize": 64,
            "dense_model_file": str(dense_file),
            "sparse_model_file": str(sparse_file),
            **clause,
        },
        "layers": [
            {
                "name": "data",
                "type": "Data",
                "check": "Sum",
                "label": {"label_dim": 1},
                "dense": {"top": "dense", "dense_dim": DENSE},
                "sparse": [
                    {"top": "data1", "type": slot_type, "max_feature_num_per_sample": 12, "slot_num": SLOTS},
                ],
            },
            {
                "name": "embedding",
                "type": f"{slot_type}SparseEmbeddingHash",
                "bottom": "data1",
                "top": "embedding",
                "sparse_embedding_hparam": {
                    "max_vocabulary_size_per_gpu": 1000,
                    "embedding_vec_size": WIDTH,
                    "combiner": combiner,
                },
            },
            {"name": "flat", "type": "Reshape", "bottom": "embedding", "top": "flat", "leading_dim": SLOTS * WIDTH},
            {"name": "both", "type": "Concat", "bottom": ["flat", "dense"], "top": "both"},
            {"name": "fc1", "type": "InnerProduct", "bottom": "both", "top": "fc1", "fc_param": {"num_output": HIDDEN}},
            {"name": "relu1", "type": "ReLU", "bottom": "fc1", "top": "relu1"},
            {"name": "dropout1", "type": "Dropout", "rate": 0.5, "bottom": "relu1", "top": "dropout1"},
            {"name": "fc2", "type": "InnerProduct", "bottom": "dropout1", "top": "fc2", "fc_param": {"num_output": 1}},
            {"name": "sigmoid", "type": "Sigmoid", "bottom": "fc2", "top": "sigmoid"},
        ],
    }


def write_model(
    folder: Path,
    *,
    name: str = "model",
    keys: int = 100,
    i64: bool = False,
    localized: bool = False,
    combiner: int = 0,
    seed: int = 0,
    **clause: Any,
) -> Model:
    """Write a configuration and files of random weights, keys 0 to ``keys``, in every slot where they are localized."""
    random = np.random.default_rng(seed)
    shapes = [(COLUMNS, HIDDEN), (1, HIDDEN), (HIDDEN, 1), (1, 1)]
    weights = [random.normal(size=shape).astype("<f4") for shape in shapes]
    dense_file, sparse_file = folder / f"{name}_dense.model", folder / f"{name}0_sparse.model"
    dense_file.write_bytes(b"".join(weight.tobytes() for weight in weights))
    tags = [(slot, key) for slot in range(SLOTS if localized else 1) for key in range(keys)]
    fields: list[Any] = [("key", "<i8" if i64 else "<u4")]
    fields += [("slot", "<u8")] if localized else []
    rows = np.zeros(len(tags), np.dtype([*fields, ("vector", "<f4", (WIDTH,))]))
    rows["key"] = [key for _, key in tags]
    if localized:
        rows["slot"] = [slot for slot, _ in tags]
    rows["vector"] = random.normal(size=(len(tags), WIDTH))
    random.shuffle(rows)
    rows.tofile(sparse_file)
    by_tag = {((int(row["slot"]), int(row["key"])) if localized else int(row["key"])): row["vector"] for row in rows}
    config = folder / f"{name}.json"
    config.write_text(json.dumps(content(dense_file, sparse_file, localized=localized, combiner=combiner, **clause)))
    return Model(config, by_tag, weights, combiner)


def request(samples: int, keys: int, seed: int = 0, hotness: int = 3) -> tuple[list[float], list[int], list[int]]:
    """Return dense features, keys and row pointers of a request, with 0 to ``hotness`` keys in a slot."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, hotness + 1, samples * SLOTS)
    row_ptrs = [0, *map(int, np.cumsum(lengths))]
    columns = [int(key) for key in random.zipf(1.2, row_ptrs[-1]) % keys]
    return [float(value) for value in random.normal(size=samples * DENSE)], columns, row_ptrs
