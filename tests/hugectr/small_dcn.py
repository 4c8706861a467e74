"""HugeCTR's DCN, of any size, for training or for inference."""

from __future__ import annotations

from typing import Any


def dcn(
    *, slots: int = 26, dense_dim: int = 13, width: int = 16, hidden: int = 1024, cross_layers: int = 6,
    dropout: float = 0.5, inference: dict[str, Any] | None = None, data: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None, vocabulary: int = 1_447_751,
) -> dict[str, Any]:  # fmt: skip
    """Return the configuration of HugeCTR's inference notebook, or of its training one, with sizes of its own.

    Args:
        inference: the clause; given, the last layer is a Sigmoid.
        data: more keys of the data layer.
        optimizer: the clause; Adam as in the notebook where it is not given.
    """
    columns = slots * width + dense_dim
    sparse = {"top": "data1", "type": "DistributedSlot", "max_feature_num_per_sample": 30, "slot_num": slots}
    sizes = {"max_vocabulary_size_per_gpu": vocabulary, "embedding_vec_size": width, "combiner": 0}
    layers: list[dict[str, Any]] = [
        {
            "name": "data", "type": "Data", "check": "Sum", "label": {"top": "label", "label_dim": 1},
            "dense": {"top": "dense", "dense_dim": dense_dim}, "sparse": [sparse], **(data or {}),
        },
        _layer("sparse_embedding1", "DistributedSlotSparseEmbeddingHash", "data1", sparse_embedding_hparam=sizes),
        _layer("reshape1", "Reshape", "sparse_embedding1", leading_dim=slots * width),
        _layer("concat1", "Concat", ["reshape1", "dense"]),
        {
            "name": "slice1", "type": "Slice", "bottom": "concat1", "top": ["slice11", "slice12"],
            "ranges": [[0, columns], [0, columns]],
        },
        _layer("multicross1", "MultiCross", "slice11", mc_param={"num_layers": cross_layers}),
    ]  # fmt: skip
    bottom = "slice12"
    for number in (1, 2):
        layers += [
            _layer(f"fc{number}", "InnerProduct", bottom, fc_param={"num_output": hidden}),
            _layer(f"relu{number}", "ReLU", f"fc{number}"),
            _layer(f"dropout{number}", "Dropout", f"relu{number}", rate=dropout),
        ]
        bottom = f"dropout{number}"
    layers += [
        _layer("concat2", "Concat", [bottom, "multicross1"]),
        _layer("fc4", "InnerProduct", "concat2", fc_param={"num_output": 1}),
    ]
    if inference is not None:
        return {"inference": inference, "layers": [*layers, _layer("sigmoid", "Sigmoid", "fc4")]}
    adam = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
    return {
        "optimizer": optimizer or {"type": "Adam", "update_type": "Global", "adam_hparam": adam},
        "layers": [*layers, _layer("loss", "BinaryCrossEntropyLoss", ["fc4", "label"])],
    }


def _layer(name: str, kind: str, bottom: str | list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "bottom": bottom, "top": name, **more}
