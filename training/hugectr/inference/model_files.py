"""A model for inference: its configuration and the files that training left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hugectr.exceptions import DataError, HugeCtrError
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.recommender.hugectr.reading import HugeCtrConfig, read_hugectr
from predictor.recommender.hugectr.sections import InferenceClause
from predictor.recommender.workload.embedding import EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.layers import LossLayer, Sigmoid


@dataclass(frozen=True, slots=True)
class InferenceModel:
    """A configuration for inference.

    Attributes:
        path: of the configuration.
    """

    path: Path
    config: HugeCtrConfig
    clause: InferenceClause
    embedding: EmbeddingLayer

    def read_sparse(self, *, i64_input_key: bool) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return keys, slots (None for a distributed layer) and vectors of the sparse model file.

        Raises:
            DataError: the file is missing, or no whole number of rows long.
        """
        has_slots = self.embedding.kind is not EmbeddingKind.DISTRIBUTED
        fields: list[tuple[str, str] | tuple[str, str, tuple[int, ...]]] = [("key", "<i8" if i64_input_key else "<u4")]
        fields += [("slot", "<u8")] if has_slots else []
        row = np.dtype([*fields, ("vector", "<f4", (self.embedding.width,))])
        (file,) = self.clause.sparse_model_file
        size = _size(file)
        if size % row.itemsize:
            raise DataError(
                f"{file} has {size} bytes; expected a multiple of {row.itemsize}, a row of "
                f"{'64' if i64_input_key else '32'}-bit key and {self.embedding.width} values"
            )
        rows = np.fromfile(file, row)
        slots = rows["slot"].astype(np.int64) if has_slots else None
        return rows["key"].astype(np.int64), slots, rows["vector"]


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None


def read_inference_model(path: Path) -> InferenceModel:
    """Read a configuration for inference.

    Raises:
        HugeCtrError: it is no configuration, has no ``inference`` clause, more than one embedding layer, or does not
            end with a Sigmoid.
    """
    try:
        config = read_hugectr(path)
    except (ConfigError, MissingKeyError, FileNotFoundError) as error:
        raise HugeCtrError(str(error)) from None
    if config.inference is None:
        raise HugeCtrError(f"{path}: inference is missing; expected max_batchsize, dense_model_file, sparse_model_file")
    embeddings, layers = config.model.embeddings, config.model.layers
    if len(embeddings) != 1 or len(config.inference.sparse_model_file) != 1:
        raise HugeCtrError(
            f"{path}: {len(embeddings)} embedding layers and {len(config.inference.sparse_model_file)} files in "
            "sparse_model_file; HugeCTR's predict takes the keys of one embedding table"
        )
    if not layers or not isinstance(layers[-1], Sigmoid):
        kind = layers[-1].TYPE if layers else "an embedding"
        hint = " in place of the loss" if layers and isinstance(layers[-1], LossLayer) else ""
        raise HugeCtrError(f"{path}: the last layer is {kind}; expected a Sigmoid{hint}")
    return InferenceModel(path, config, config.inference, embeddings[0])
