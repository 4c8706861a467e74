"""Small HugeCTR configurations that the tests change one thing of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.recommender.hugectr.reading import parse_hugectr
from predictor.recommender.hugectr.to_run import LoadedRecommender, Options, to_run

SHARED = Path(__file__).resolve().parents[3] / "shared"
SAMPLES = sorted((SHARED / "spec" / "companion" / "hugectr" / "samples").glob("*.json"))
SLOTS = (40_000, 3, 7_000, 150)
Content = dict[str, Any]


def fully_connected(name: str, bottom: str, top: str, num_output: int, kind: str = "InnerProduct") -> Content:
    """Return a fully connected layer."""
    return {"name": name, "type": kind, "bottom": bottom, "top": top, "fc_param": {"num_output": num_output}}


def data_layer(kind: str, num_slots: int, sizes: tuple[int, ...]) -> Content:
    """Return the data layer."""
    return {
        "name": "data",
        "type": "Data",
        "source": "./file_list.txt",
        "slot_size_array": list(sizes),
        "label": {"top": "label", "label_dim": 1},
        "dense": {"top": "dense", "dense_dim": 13},
        "sparse": [{"top": "keys", "type": kind, "max_feature_num_per_sample": 40 * num_slots, "slot_num": num_slots}],
    }


def embedding_layer(kind: str, width: int, **hyperparameters: Any) -> Content:
    """Return an embedding layer over the one sparse input."""
    return {
        "name": "embedding",
        "type": kind,
        "bottom": "keys",
        "top": "vectors",
        "sparse_embedding_hparam": {"embedding_vec_size": width, "combiner": 0, **hyperparameters},
    }


def loss(bottom: str) -> Content:
    """Return the loss."""
    return {"name": "loss", "type": "BinaryCrossEntropyLoss", "bottom": [bottom, "label"], "top": "loss"}


def dlrm(**clauses: Content) -> Content:
    """Return a small DLRM of localized slots with known sizes, with clauses merged in."""
    layers = [
        data_layer("LocalizedSlot", len(SLOTS), SLOTS),
        embedding_layer("LocalizedSlotSparseEmbeddingOneHot", 32, slot_size_array=list(SLOTS)),
        fully_connected("bottom1", "dense", "dense1", 64, "FusedInnerProduct"),
        fully_connected("bottom2", "dense1", "dense2", 32, "FusedInnerProduct"),
        {"name": "interaction", "type": "Interaction", "bottom": ["dense2", "vectors"], "top": "pairs"},
        fully_connected("top1", "pairs", "top1", 128, "FusedInnerProduct"),
        fully_connected("top2", "top1", "top2", 1),
        loss("top2"),
    ]
    return _merged({"layers": layers, "optimizer": {"type": "SGD", "update_type": "Local"}}, clauses)


def dcn(projection_dim: int = 0, **clauses: Content) -> Content:
    """Return a small DCN of one distributed table, with clauses merged in; a projection makes it DCN-v2."""
    cross: Content = {"num_layers": 3}
    if projection_dim:
        cross["projection_dim"] = projection_dim
    layers = [
        data_layer("DistributedSlot", 8, ()),
        embedding_layer("DistributedSlotSparseEmbeddingHash", 16, max_vocabulary_size_per_gpu=50_000),
        {"name": "flat", "type": "Reshape", "bottom": "vectors", "top": "flat", "leading_dim": 128},
        {"name": "both", "type": "Concat", "bottom": ["flat", "dense"], "top": "both"},
        {"name": "halves", "type": "Slice", "bottom": "both", "ranges": [[0, 141], [0, 141]], "top": ["deep", "wide"]},
        {"name": "cross", "type": "MultiCross", "bottom": "wide", "top": "crossed", "mc_param": cross},
        fully_connected("deep1", "deep", "deep1", 256),
        {"name": "relu", "type": "ReLU", "bottom": "deep1", "top": "deep2"},
        {"name": "dropout", "type": "Dropout", "bottom": "deep2", "top": "deep3", "rate": 0.5},
        {"name": "joined", "type": "Concat", "bottom": ["deep3", "crossed"], "top": "joined"},
        fully_connected("last", "joined", "logit", 1),
        loss("logit"),
    ]
    return _merged({"layers": layers, "optimizer": {"type": "Adam", "update_type": "Global"}}, clauses)


def _merged(content: Content, clauses: dict[str, Content]) -> Content:
    content["solver"] = {"gpu": [0, 1], "batchsize": 4096}
    for name, clause in clauses.items():
        content[name] = {**content.get(name, {}), **clause}
    return content


def loaded(content: Content, **options: Any) -> LoadedRecommender:
    """Return a configuration as a run, on Perlmutter unless another system is named."""
    return to_run(parse_hugectr(content), Options(**{"system": "Perlmutter", **options}), REGRESSORS_FOLDER)
