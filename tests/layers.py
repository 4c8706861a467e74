"""A layer of a run or a model, as tests ask for it: its passes, what it keeps, its parameters."""

from __future__ import annotations

from predictor.core.blocks.layer import LayerSettings, layer_rows
from predictor.core.blocks.mixers import LayerKind
from predictor.core.folds import KeptBytes, kept_bytes, parameters
from predictor.core.rows import Row
from predictor.core.workload.architecture import sized
from predictor.core.workload.layer import layer_of
from predictor.core.workload.layer_table import kept_rows
from predictor.core.workload.layer_table import layer_rows as whole_rows
from predictor.core.workload.layout import Layout
from predictor.core.workload.rank_parameters import RankParameters
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.tasks import PassTasks
from predictor.core.workload.transformer import Transformer

DENSE = LayerKind()


def rows_of(run: TrainingRun, kind: LayerKind) -> list[Row]:
    """Return all rows of a layer, recomputed as the run says."""
    return whole_rows(run, kind, kept_rows(run, kind))


def forward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    return layer_of(run, kind).passes.forward


def backward_pass(run: TrainingRun, kind: LayerKind) -> PassTasks:
    return layer_of(run, kind).passes.backward


def times(tasks: PassTasks) -> dict[str, float]:
    """Return how often the tasks of each name run in turn."""
    counted: dict[str, float] = {}
    for task in tasks.tasks:
        counted[task.name] = counted.get(task.name, 0.0) + task.times
    return counted


def kept_of(run: TrainingRun, kind: LayerKind) -> KeptBytes:
    """Return what a layer keeps where nothing is recomputed and no compiler decides."""
    return kept_bytes(kept_rows(run, kind))


def parameters_of(model: Transformer, kind: LayerKind = DENSE, tensor_parallel_size: int = 1) -> RankParameters:
    """Return the parameters of a layer on one rank, which holds all experts."""
    call = sized(model, model.call(1, tensor_parallel_size), kind)
    return parameters(layer_rows(model, kind, call, LayerSettings(Layout(tensor_parallel_size, 1, 1, gpus_per_node=8))))
