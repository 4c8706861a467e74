"""An inference session: an embedding cache and a dense network that answer requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hugectr.dense.files import load_network
from hugectr.dense.module import Position
from hugectr.dense.network import DenseNetwork
from hugectr.exceptions import HugeCtrError
from hugectr.inference.embedding_cache import EmbeddingCacheInterface
from hugectr.inference.model_files import InferenceModel

ANYWHERE = Position(seed=0, step=1, first_sample=0)  # random numbers depend on it, and inference draws none


class InferenceNetwork:
    """A model's dense layers with trained weights, as in evaluation: no dropout, running values of BatchNorm."""

    def __init__(self, model: InferenceModel, device: torch.device) -> None:
        """Read the dense model file.

        Raises:
            DataError: it is missing or not of the model's size.
        """
        half = torch.float16 if model.clause.mixed_precision else None
        self._network = DenseNetwork(model.config.model, device=device, half=half)
        load_network(self._network, Path(model.clause.dense_model_file))
        self._network.eval()
        self._device = device
        self._embedding = model.embedding.output
        self._prediction = model.config.model.layers[-1].outputs[0]

    def __call__(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output, (samples, columns) float32.

        Args:
            dense: (samples, dense_dim) float32.
            pooled: (samples, slots, width) float32, on the device.
        """
        embeddings = {self._embedding: pooled if self._network.half is None else pooled.to(self._network.half)}
        output = self._network(None, dense.to(self._device), lambda: embeddings, ANYWHERE)
        return output.tensors[self._prediction].float()


class Request(NamedTuple):
    """A request that was checked.

    Attributes:
        dense: (samples, dense_dim) float32.
        keys: (n,) int64.
        row_ptrs: (samples · slots + 1,) int64.
    """

    dense: torch.Tensor
    keys: torch.Tensor
    row_ptrs: torch.Tensor


class InferenceSession:
    """Predicts with one model; sessions of several threads may share a cache."""

    def __init__(self, config_file: str, device_id: int, embedding_cache: EmbeddingCacheInterface) -> None:
        """Read the dense model.

        Args:
            config_file: the configuration that the cache's model was read from.
            device_id: GPU of the dense network, which is the cache's.
            embedding_cache: of the model.

        Raises:
            HugeCtrError: device or configuration is not the cache's.
            DataError: the dense model file is missing or not of the model's size.
        """
        model = embedding_cache.model
        if device_id != embedding_cache.device_id:
            raise HugeCtrError(f"device_id is {device_id}; the embedding cache is on {embedding_cache.device_id}")
        if Path(config_file).resolve() != model.path.resolve():
            raise HugeCtrError(f"config_file is {config_file}; the embedding cache is of {model.path}")
        self.embedding_cache = embedding_cache
        self._network = InferenceNetwork(model, embedding_cache.device)

    def predict(
        self,
        dense_feature: Sequence[float],
        embeddingcolumns: Sequence[int],
        row_ptrs: Sequence[int],
        i64_input_key: bool = False,
    ) -> list[float]:
        """Return the predictions of all samples, each with as many values as the last layer has columns.

        Args:
            dense_feature: dense features, sample by sample.
            embeddingcolumns: keys, slot by slot within sample by sample; any number in a slot.
            row_ptrs: where the keys of each slot of each sample begin, and the number of keys at the end.
            i64_input_key: keys are 64-bit, as at the embedding cache.

        Raises:
            HugeCtrError: the lengths do not agree, the request has more than max_batchsize samples, or a key is not
                of the stated width.
        """
        if bool(i64_input_key) != self.embedding_cache.i64_input_key:
            raise HugeCtrError(
                f"i64_input_key is {i64_input_key}; the embedding cache's is {self.embedding_cache.i64_input_key}"
            )
        request = checked(self.embedding_cache.model, dense_feature, embeddingcolumns, row_ptrs, i64_input_key)
        with torch.inference_mode():
            pooled = self.embedding_cache.pooled(request.keys, request.row_ptrs)
            predictions: list[float] = self._network(request.dense, pooled).flatten().tolist()
        return predictions


def checked(
    model: InferenceModel,
    dense_feature: Sequence[float],
    embeddingcolumns: Sequence[int],
    row_ptrs: Sequence[int],
    i64_input_key: bool,
) -> Request:
    """Return a request as tensors.

    Raises:
        HugeCtrError: as ``InferenceSession.predict``.
    """
    num_slots, dense_dim = model.embedding.num_slots, model.config.model.dense_dim
    dense = _array("dense_feature", dense_feature, np.float32)
    keys = _array("embeddingcolumns", embeddingcolumns, np.int64)
    pointers = _array("row_ptrs", row_ptrs, np.int64)
    samples, rest = divmod(len(pointers) - 1, num_slots)
    if rest or samples < 1:
        raise HugeCtrError(
            f"row_ptrs has {len(pointers)} entries; expected {num_slots} for each sample, one per slot, and one more"
        )
    if samples > model.clause.max_batchsize:
        raise HugeCtrError(f"the request has {samples} samples; max_batchsize is {model.clause.max_batchsize}")
    if len(dense) != samples * dense_dim:
        raise HugeCtrError(f"dense_feature has {len(dense)} values; expected {dense_dim} for each of {samples} samples")
    if pointers[0] != 0 or pointers[-1] != len(keys) or bool((np.diff(pointers) < 0).any()):
        raise HugeCtrError(
            f"row_ptrs goes from {pointers[0]} to {pointers[-1]}; expected from 0 to {len(keys)}, the number of keys, "
            "without a step back"
        )
    if not i64_input_key and len(keys) and not 0 <= int(keys.min()) <= int(keys.max()) < 1 << 32:
        raise HugeCtrError(
            f"embeddingcolumns has keys from {keys.min()} to {keys.max()}; 32-bit keys go from 0 to {(1 << 32) - 1}"
        )
    return Request(
        torch.from_numpy(dense.reshape(samples, dense_dim)), torch.from_numpy(keys), torch.from_numpy(pointers)
    )


def _array(name: str, values: Sequence[float], kind: type[np.generic]) -> np.ndarray:
    try:
        given = np.asarray(values)
        if kind is np.int64 and given.size and not np.issubdtype(given.dtype, np.integer):
            raise ValueError(f"{given.dtype} is no whole number")
        array: np.ndarray = np.ascontiguousarray(given, dtype=kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise HugeCtrError(f"{name} is no list of numbers: {error}") from None
    if array.ndim != 1:
        raise HugeCtrError(f"{name} has {array.ndim} dimensions; expected a flat list")
    return array
