"""The parameter server: the embedding tables of several models in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hugectr.exceptions import HugeCtrError
from hugectr.inference.model_files import InferenceModel, read_inference_model


class HostTable:
    """The rows of one table, by key, or by slot and key where several slots have the same key.

    Attributes:
        vectors: (rows, width) float32 in the host's memory, in the order of the index.
        has_slots: a tag is (key, slot); otherwise it is (key,).
    """

    def __init__(self, keys: np.ndarray, slots: np.ndarray | None, vectors: np.ndarray) -> None:
        """Index the rows of a sparse model file; slots that shared a row in training do so here."""
        if slots is not None and len(np.unique(keys)) == len(keys):
            slots = None
        self.has_slots = slots is not None
        order = np.argsort(keys, kind="stable") if slots is None else np.lexsort((keys, slots))
        self._keys = keys[order]
        edges = [0, len(keys)] if slots is None else np.searchsorted(slots[order], np.arange(slots.max(initial=0) + 2))
        self._edges = [int(edge) for edge in edges]
        self.vectors = torch.from_numpy(np.ascontiguousarray(vectors[order]))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._keys)

    def rows(self, tags: np.ndarray) -> np.ndarray:
        """Return each tag's row, (n,) int64; -1 where the table has none.

        Args:
            tags: (n, 1 or 2) int64.
        """
        if not self.has_slots:
            return self._rows_within(0, tags[:, 0])
        rows = np.full(len(tags), -1, dtype=np.int64)
        for slot in np.unique(tags[:, 1]):
            if 0 <= slot < len(self._edges) - 1:
                own = tags[:, 1] == slot
                rows[own] = self._rows_within(int(slot), tags[own, 0])
        return rows

    def _rows_within(self, part: int, keys: np.ndarray) -> np.ndarray:
        start, end = self._edges[part], self._edges[part + 1]
        if start == end:
            return np.full(len(keys), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._keys[start:end], keys), end - start - 1) + start
        return np.where(self._keys[places] == keys, places, -1)

    def lookup(self, tags: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (n, width) rows in the host's memory, zeros where the table has none, and (n,) whether it has one."""
        rows = torch.from_numpy(self.rows(tags.cpu().numpy()))
        known = rows >= 0
        if bool(known.all()):
            return self.vectors[rows], known
        vectors = torch.zeros(len(rows), self.vectors.shape[1])
        vectors[known] = self.vectors[rows[known]]
        return vectors, known


class ParameterServerBase:
    """Tables of several models; ``CreateParameterServer`` makes one."""

    def __init__(self, models: dict[str, InferenceModel], i64_input_key: bool) -> None:
        """Read the sparse model file of every model."""
        self.i64_input_key = i64_input_key
        self._models = models
        self._tables = {
            name: HostTable(*model.read_sparse(i64_input_key=i64_input_key)) for name, model in models.items()
        }

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of its models."""
        return tuple(self._models)

    def model(self, name: str) -> InferenceModel:
        """Return a model's configuration.

        Raises:
            HugeCtrError: it has no such model.
        """
        self._check(name)
        return self._models[name]

    def table(self, name: str) -> HostTable:
        """Return a model's embedding table.

        Raises:
            HugeCtrError: it has no such model.
        """
        self._check(name)
        return self._tables[name]

    def _check(self, name: str) -> None:
        if name not in self._models:
            raise HugeCtrError(f"model_name is {name!r}; the parameter server has {', '.join(self._models)}")


def CreateParameterServer(  # noqa: N802 - the documented name
    model_config_path: Sequence[str], model_name: Sequence[str], i64_input_key: bool
) -> ParameterServerBase:
    """Return a parameter server that holds the embedding tables of all models.

    Args:
        model_config_path: configuration for inference of each model.
        model_name: of each model, in the same order.
        i64_input_key: keys are 64-bit, in the sparse model files as in requests.

    Raises:
        HugeCtrError: lists of different lengths or an empty one, a name twice, or a model that cannot infer.
        DataError: a model file is missing or not of the model's size.
    """
    if isinstance(model_config_path, str) or isinstance(model_name, str):
        raise HugeCtrError("model_config_path and model_name are lists, of one entry for each model")
    if len(model_config_path) != len(model_name) or not model_name:
        raise HugeCtrError(
            f"model_config_path has {len(model_config_path)} entries and model_name {len(model_name)}; "
            "expected one of each for every model, in one order"
        )
    if len(set(model_name)) < len(model_name):
        raise HugeCtrError(f"model_name names a model twice: {', '.join(model_name)}")
    models = {name: read_inference_model(Path(path)) for name, path in zip(model_name, model_config_path, strict=True)}
    for name, model in models.items():
        stated = model.clause.input_key_type
        if stated is not None and (stated == "I64") != bool(i64_input_key):
            raise HugeCtrError(f"i64_input_key is {i64_input_key}; input_key_type of model {name} is {stated}")
    return ParameterServerBase(models, bool(i64_input_key))
