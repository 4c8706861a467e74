"""Read a HugeCTR configuration, for training or for inference, into a ``Recommender`` and its other clauses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from predictor.core.base.errors import ConfigError, MissingKeyError, nearest
from predictor.core.base.json_text import unique_keys
from predictor.core.base.read_yaml import first_problem
from predictor.recommender.hugectr.dense_layers import dense_layer
from predictor.recommender.hugectr.sections import (
    AdaGradHyperparameters,
    AdamHyperparameters,
    Data,
    EmbeddingClause,
    InferenceClause,
    MomentumHyperparameters,
    OptimizerClause,
    PredictionClause,
    SgdHyperparameters,
    Solver,
    Sparse,
)
from predictor.recommender.workload.embedding import Combiner, EmbeddingKind, EmbeddingLayer
from predictor.recommender.workload.layers import DenseLayer
from predictor.recommender.workload.model import Recommender
from predictor.recommender.workload.optimizer import Optimizer, OptimizerKind, Schedule, UpdateType

CLAUSES = ("solver", "optimizer", "layers", "inference", "prediction")
SPARSE_TYPES = {EmbeddingKind.DISTRIBUTED: "DistributedSlot"}
ROUNDING = 1e-9
Model = TypeVar("Model", bound=BaseModel)

__all__ = ["HugeCtrConfig", "optimizer_of", "parse_hugectr", "read_hugectr"]


@dataclass(frozen=True, slots=True)
class HugeCtrConfig:
    """A configuration.

    Attributes:
        solver: None where the file has none, as with the Python interface.
        inference: None in a configuration for training.
        content: as it was read.
    """

    model: Recommender
    data: Data
    solver: Solver | None
    inference: InferenceClause | None
    prediction: PredictionClause
    content: dict[str, Any]


def _clause(model: type[Model], where: str, content: Any) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: {first_problem(error)}") from None


def optimizer_of(clause: OptimizerClause) -> Optimizer:
    """Return the optimizer of a clause."""
    given = clause.hyperparameters
    update = UpdateType(clause.update_type)
    if clause.global_update is not None:
        update = UpdateType.GLOBAL if clause.global_update else UpdateType.LOCAL
    kind = OptimizerKind(clause.type)
    match given:
        case AdamHyperparameters():
            rate = Schedule(given.learning_rate)
            return Optimizer(kind, rate, update, beta1=given.beta1, beta2=given.beta2, epsilon=given.epsilon)
        case MomentumHyperparameters():
            return Optimizer(kind, Schedule(given.learning_rate), update, momentum=given.momentum_factor)
        case AdaGradHyperparameters():
            rate = Schedule(given.learning_rate)
            return Optimizer(kind, rate, update, epsilon=given.epsilon, initial=given.initial_accu_value)
    assert isinstance(given, SgdHyperparameters)
    schedule = Schedule(
        given.learning_rate, given.warmup_steps, given.decay_start, given.decay_steps, given.decay_power, given.end_lr
    )
    return Optimizer(kind, schedule, update)


def _hotness(sparse: Sparse, prediction: PredictionClause) -> tuple[float, ...]:
    """Return the keys per sample of each slot: as ``prediction`` says, otherwise one, as in Criteo's data."""
    stated, where = prediction.hotness.get(sparse.top), f"prediction.hotness.{sparse.top}"
    if stated is None:
        return (1.0,) * sparse.slot_num
    if len(stated) not in (1, sparse.slot_num):
        raise ConfigError(f"{where} has {len(stated)} values; {sparse.top} has {sparse.slot_num} slots")
    for keys in stated:
        if not 0.0 < keys < inf:
            raise ConfigError(f"{where} holds {keys}; expected keys per sample and slot, a number above 0")
        if sparse.max_nnz is not None and keys > sparse.max_nnz:
            raise ConfigError(f"{where} holds {keys:g}; more than max_nnz of {sparse.top}, {sparse.max_nnz}")
    slots = stated * sparse.slot_num if len(stated) == 1 else stated
    if sum(slots) > sparse.max_feature_num_per_sample * (1.0 + ROUNDING):
        raise ConfigError(
            f"{where} sums up to {sum(slots):g} over {sparse.slot_num} slots; more than max_feature_num_per_sample of "
            f"{sparse.top}, {sparse.max_feature_num_per_sample}"
        )
    return slots


def _check_hotness(data: Data, prediction: PredictionClause) -> None:
    """Check that keys per sample are of inputs that there are."""
    tops = [sparse.top for sparse in data.sparse]
    for name in prediction.hotness:
        if name not in tops:
            raise ConfigError(
                f"prediction.hotness names {name}, which is no sparse input.{nearest(name, tops)} There are: "
                f"{', '.join(tops)}"
            )


def _embedding(clause: EmbeddingClause, data: Data, prediction: PredictionClause) -> EmbeddingLayer:
    kind = EmbeddingKind(clause.type)
    tops = [sparse.top for sparse in data.sparse]
    if clause.bottom not in tops:
        raise ConfigError(f"layer {clause.name}: bottom is {clause.bottom}; the data layer has {', '.join(tops)}")
    number = tops.index(clause.bottom)
    sparse = data.sparse[number]
    expected = SPARSE_TYPES.get(kind, "LocalizedSlot")
    if sparse.type != expected:
        raise ConfigError(f"layer {clause.name} ({kind}) reads {sparse.top} of type {sparse.type}; it takes {expected}")
    given = clause.sparse_embedding_hparam
    first = sum(before.slot_num for before in data.sparse[:number])
    sizes = given.slot_size_array or data.slot_size_array[first : first + sparse.slot_num]
    if sizes and len(sizes) != sparse.slot_num:
        raise ConfigError(f"layer {clause.name}: slot_size_array has {len(sizes)} sizes for {sparse.slot_num} slots")
    if not sizes and given.max_vocabulary_size_per_gpu is None:
        raise ConfigError(
            f"layer {clause.name}: max_vocabulary_size_per_gpu is missing, and no slot_size_array is given"
        )
    return EmbeddingLayer(
        name=clause.name,
        input=clause.bottom,
        output=clause.top,
        kind=kind,
        num_slots=sparse.slot_num,
        width=given.embedding_vec_size,
        combiner=Combiner.MEAN if given.combiner else Combiner.SUM,
        rows_per_gpu=given.max_vocabulary_size_per_gpu or 0,
        slot_rows=tuple(sizes),
        hotness=_hotness(sparse, prediction),
        optimizer=None if clause.optimizer is None else optimizer_of(clause.optimizer),
    )


def _model(layers: list[Any], data: Data, prediction: PredictionClause, optimizer: Optimizer | None) -> Recommender:
    embeddings: list[EmbeddingLayer] = []
    dense: list[DenseLayer] = []
    for layer in layers[1:]:
        if not isinstance(layer, Mapping):
            raise ConfigError(f"layers holds {layer!r}; expected a mapping for each layer")
        if not isinstance(layer.get("type"), str):
            raise ConfigError(f"layer {layer.get('name')}: type is {layer.get('type')!r}; expected the name of a type")
        if layer["type"] in set(EmbeddingKind):
            clause = _clause(EmbeddingClause, f"layer {layer.get('name')}", layer)
            if dense:
                raise ConfigError(
                    f"layer {clause.name} comes after a dense layer; embeddings must precede dense layers"
                )
            embeddings.append(_embedding(clause, data, prediction))
        else:
            dense.append(dense_layer(layer))
    model = Recommender(
        label=data.label.top,
        label_dim=data.label.label_dim,
        dense=data.dense.top,
        dense_dim=data.dense.dense_dim,
        embeddings=tuple(embeddings),
        layers=tuple(dense),
        optimizer=optimizer,
    )
    _ = model.shapes  # every layer takes its inputs
    return model


def parse_hugectr(content: dict[str, Any], name: str = "configuration") -> HugeCtrConfig:
    """Return a configuration that was read already; ``name`` leads the messages.

    Raises:
        MissingKeyError: a clause is missing.
        ConfigError: a clause, layer or key is unknown, or a value is not allowed.
    """
    try:
        return _parsed(content)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except MissingKeyError as error:
        raise MissingKeyError(f"{name}: {error}") from None


def _parsed(content: dict[str, Any]) -> HugeCtrConfig:
    unknown = [key for key in content if key not in CLAUSES]
    if unknown:
        raise ConfigError(f"{unknown[0]} is not a clause; there are: {', '.join(CLAUSES)}")
    layers = content.get("layers")
    if not isinstance(layers, list) or not layers:
        raise MissingKeyError("layers is missing; expected a list that begins with the data layer")
    data = _clause(Data, "layer data", layers[0])
    inference = None
    if "inference" in content:
        inference = _clause(InferenceClause, "inference", content["inference"])
    elif "optimizer" not in content:
        raise MissingKeyError("optimizer is missing")
    prediction = _clause(PredictionClause, "prediction", content.get("prediction", {}))
    optimizer = None
    if "optimizer" in content:
        optimizer = optimizer_of(_clause(OptimizerClause, "optimizer", content["optimizer"]))
    _check_hotness(data, prediction)
    model = _model(layers, data, prediction, optimizer)
    if inference is None and model.loss is None:
        raise ConfigError("no layer is a loss; a configuration for training ends with one")
    solver = _clause(Solver, "solver", content["solver"]) if "solver" in content else None
    return HugeCtrConfig(model, data, solver, inference, prediction, content)


def read_hugectr(path: Path) -> HugeCtrConfig:
    """Read a configuration.

    Raises:
        FileNotFoundError: there is no such file.
        MissingKeyError: a clause is missing.
        ConfigError: it is no JSON, or as ``parse_hugectr``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; expected a JSON file") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no JSON object; expected the clauses {', '.join(CLAUSES)}")
    return parse_hugectr(content, str(path))
