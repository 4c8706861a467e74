"""Small recommenders with data, for tests of sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hugectr.data.norm import write_norm
from hugectr.data.samples import Samples

SLOTS, ROWS, WIDTH, DENSE = 4, 40, 4, 3
ADAM = {"type": "Adam", "adam_hparam": {"learning_rate": 0.01}}
SGD = {"type": "SGD", "sgd_hparam": {"learning_rate": 0.5}}
DISTRIBUTED, LOCALIZED = "DistributedSlot", "LocalizedSlot"


def fc(name: str, bottom: str, num_output: int, kind: str = "InnerProduct") -> dict[str, Any]:
    """Return a fully connected layer."""
    return {"name": name, "type": kind, "bottom": bottom, "top": name, "fc_param": {"num_output": num_output}}


def dcn_layers() -> list[dict[str, Any]]:
    """Return the dense layers of a small Deep & Cross Network."""
    columns = SLOTS * WIDTH + DENSE
    ranges = [[0, columns], [0, columns]]
    return [
        {"name": "reshape1", "type": "Reshape", "bottom": "emb", "top": "reshape1", "leading_dim": SLOTS * WIDTH},
        {"name": "concat1", "type": "Concat", "bottom": ["reshape1", "dense"], "top": "concat1"},
        {"name": "slice1", "type": "Slice", "bottom": "concat1", "ranges": ranges, "top": ["left", "right"]},
        {"name": "cross", "type": "MultiCross", "bottom": "left", "top": "cross", "mc_param": {"num_layers": 2}},
        fc("fc1", "right", 16),
        {"name": "relu1", "type": "ReLU", "bottom": "fc1", "top": "relu1"},
        {"name": "dropout1", "type": "Dropout", "rate": 0.5, "bottom": "relu1", "top": "dropout1"},
        {"name": "concat2", "type": "Concat", "bottom": ["dropout1", "cross"], "top": "concat2"},
        fc("fc2", "concat2", 1),
        {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc2", "label"], "top": "loss"},
    ]


def dlrm_layers() -> list[dict[str, Any]]:
    """Return the dense layers of a small DLRM with batch normalisation in its bottom network."""
    return [
        fc("fc1", "dense", 8, "FusedInnerProduct"),
        {"name": "norm", "type": "BatchNorm", "bottom": "fc1", "top": "norm"},
        fc("fc2", "norm", WIDTH, "FusedInnerProduct"),
        {"name": "pairs", "type": "Interaction", "bottom": ["fc2", "emb"], "top": "pairs"},
        fc("fc3", "pairs", 8, "FusedInnerProduct"),
        fc("fc4", "fc3", 1),
        {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": ["fc4", "label"], "top": "loss",
         "regularizer": "L2", "lambda": 0.1},
    ]  # fmt: skip


class Made(NamedTuple):
    """A configuration and its file lists."""

    config: Path
    train: Path
    eval: Path


def samples(num_samples: int, seed: int, max_nnz: int = 2) -> Samples:
    """Return samples whose labels depend on their keys and dense features; slots have keys of their own."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, max_nnz, (SLOTS, num_samples), dtype=np.int32, endpoint=True)
    slot = np.repeat(np.arange(SLOTS), lengths.sum(axis=1))
    keys = rng.integers(0, ROWS, slot.size) + slot * ROWS
    sample = np.concatenate([np.repeat(np.arange(num_samples), row) for row in lengths])
    dense = rng.random((num_samples, DENSE), dtype=np.float32)
    weight = np.random.default_rng(7).normal(size=SLOTS * ROWS)
    logit = np.bincount(sample, weights=weight[keys], minlength=num_samples) + dense.sum(axis=1) - 1.5
    label = (rng.random(num_samples) < 1 / (1 + np.exp(-2 * logit))).astype(np.float32)[:, None]
    return Samples(label, dense, keys.astype(np.int64), lengths)


def write_list(folder: Path, name: str, files: int, per_file: int, seed: int) -> Path:
    """Write Norm files and their list."""
    paths = []
    for number in range(files):
        path = folder / f"{name}.{number}.data"
        write_norm(path, samples(per_file, seed + number), is_64_bit=False, is_checked=True)
        paths.append(path)
    listed = folder / f"{name}.txt"
    listed.write_text("\n".join([str(files), *map(str, paths)]) + "\n", encoding="utf-8")
    return listed


def make(
    folder: Path,
    layers: list[dict[str, Any]] | None = None,
    *,
    optimizer: dict[str, Any] | None = None,
    kind: str = DISTRIBUTED,
    files: int = 3,
    per_file: int = 48,
    vocabulary: int = 2 * SLOTS * ROWS,
    **clauses: Any,
) -> Made:
    """Write a configuration with training and evaluation data."""
    train = write_list(folder, "train", files, per_file, seed=1)
    evaluated = write_list(folder, "eval", 1, per_file, seed=100)
    data = {
        "name": "data", "type": "Data", "source": str(train), "eval_source": str(evaluated), "check": "Sum",
        "label": {"top": "label", "label_dim": 1}, "dense": {"top": "dense", "dense_dim": DENSE},
        "sparse": [{"top": "data1", "type": kind, "max_feature_num_per_sample": 20, "slot_num": SLOTS}],
    }  # fmt: skip
    embedding = {
        "name": "embedding1", "type": f"{kind}SparseEmbeddingHash", "bottom": "data1", "top": "emb",
        "sparse_embedding_hparam": {
            "max_vocabulary_size_per_gpu": vocabulary, "embedding_vec_size": WIDTH, "combiner": 0
        },
    }  # fmt: skip
    content = {"optimizer": optimizer or ADAM, "layers": [data, embedding, *(layers or dcn_layers())], **clauses}
    config = folder / "config.json"
    config.write_text(json.dumps(content), encoding="utf-8")
    return Made(config, train, evaluated)
