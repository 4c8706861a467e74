"""Files of the dense network, as HugeCTR's: raw float32 in the order of the layers, JSON for untrained values.

Beside the weights' file lies ``<file>.ntp.json`` with the running values of batch normalisation, and beside the
optimizer states' file ``<file>.json`` with the number of steps, which Adam needs to go on and HugeCTR's format lacks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hugectr.dense.network import DenseNetwork
from hugectr.dense.optimizers import DenseOptimizer
from hugectr.dense.weighted import BatchNorm
from hugectr.exceptions import DataError
from predictor.core.base.read_yaml import first_problem


class BatchNormValues(BaseModel):
    """Running values of one BatchNorm layer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    mean: tuple[float, ...]
    var: tuple[float, ...]


class NonTrainable(BaseModel):
    """The file of non-trainable parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: tuple[BatchNormValues, ...]


class Progress(BaseModel):
    """What the states of an optimizer belong to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: str = Field(description="its type")
    steps: int = Field(ge=0, description="updates done")
    skipped_steps: int = Field(default=0, ge=0, description="steps whose gradients overflowed")
    seed: int = Field(default=0, description="of the run")


def _replace(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)


def write_values(path: Path, values: torch.Tensor) -> None:
    """Write a tensor's values as raw little-endian float32."""
    _replace(
        path, memoryview(values.detach().cpu().contiguous().numpy().astype("<f4", copy=False).reshape(-1)).cast("B")
    )


def read_values(path: Path, values: torch.Tensor, what: str) -> None:
    """Read a tensor's values.

    Raises:
        DataError: the file is missing or has another size.
    """
    expected = values.numel() * 4
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; expected {what}") from None
    if size != expected:
        raise DataError(f"{path} has {size} bytes; {what} of this configuration take {expected}")
    content = torch.from_numpy(np.fromfile(path, dtype="<f4"))
    with torch.no_grad():
        values.copy_(content.view(values.shape))


def _json(path: Path, model: type[Any]) -> Any:
    try:
        return model.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise DataError(f"{path}: {first_problem(error)}") from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}") from None


def non_trainable_path(path: Path) -> Path:
    """Return where the non-trainable parameters of a dense model file lie."""
    return path.with_name(f"{path.name}.ntp.json")


def progress_path(path: Path) -> Path:
    """Return where the progress of an optimizer-state file lies."""
    return path.with_name(f"{path.name}.json")


def save_network(network: DenseNetwork, path: Path) -> None:
    """Write weights, and running values where the network has any."""
    write_values(path, network.weights.flat)
    norms = [module for _, module in network.steps if isinstance(module, BatchNorm)]
    if norms:
        layers = [{"type": "BatchNorm", "mean": norm.mean.tolist(), "var": norm.var.tolist()} for norm in norms]
        _replace(non_trainable_path(path), json.dumps({"layers": layers}).encode())


def load_network(network: DenseNetwork, path: Path) -> None:
    """Read weights and running values.

    Raises:
        DataError: a file is missing or does not fit the configuration.
    """
    read_values(path, network.weights.flat, "the dense weights")
    norms = [module for _, module in network.steps if isinstance(module, BatchNorm)]
    if not norms:
        return
    values_path = non_trainable_path(path)
    if not values_path.exists():
        raise DataError(
            f"{values_path} does not exist; the model has {len(norms)} BatchNorm layers, whose values it holds"
        )
    values: NonTrainable = _json(values_path, NonTrainable)
    widths = [len(layer.mean) for layer in values.layers]
    if widths != [norm.mean.numel() for norm in norms] or widths != [len(layer.var) for layer in values.layers]:
        raise DataError(
            f"{values_path} has layers of {widths} values; expected {[norm.mean.numel() for norm in norms]}"
        )
    for norm, layer in zip(norms, values.layers, strict=True):
        norm.mean.copy_(torch.tensor(layer.mean))
        norm.var.copy_(torch.tensor(layer.var))


def save_optimizer(optimizer: DenseOptimizer, path: Path, progress: Progress) -> None:
    """Write states and progress; an optimizer without states gives an empty file."""
    write_values(path, optimizer.states)
    _replace(progress_path(path), progress.model_dump_json().encode())


def load_optimizer(optimizer: DenseOptimizer, path: Path) -> Progress:
    """Read states, and progress where it is there; a file of HugeCTR's own has none and begins at step 0.

    Raises:
        DataError: a file is missing, of another optimizer or does not fit the configuration.
    """
    kind = optimizer.optimizer.kind
    beside = progress_path(path)
    progress = Progress(optimizer=kind, steps=0)
    if beside.exists():
        progress = _json(beside, Progress)
        if progress.optimizer != kind:
            raise DataError(f"{path} holds the states of {progress.optimizer}; the configuration's optimizer is {kind}")
    read_values(path, optimizer.states, f"the states of {kind}")
    return progress
