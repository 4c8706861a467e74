"""The indicator of sensitivity that ``--indicator_type`` names."""

from __future__ import annotations

from pathlib import Path

from predictor.replay.precision.indicator import indicator, indicator_without_statistics, read_statistics
from predictor.replay.precision.operator_graph import OperatorGraph
from predictor.replay.precision.plans import Sensitivities
from predictor.replay.procedure.folders import Folders

GVAR, UNIT = "gvar", "unit"
INDICATORS = (GVAR, UNIT)  # the first is the usual one


def statistics_path(folders: Folders, model: str) -> Path:
    """Return where the statistics of a model's tensors lie."""
    return folders.root / "input_data" / f"{model}.statistics.json"


def indicator_of(kind: str, folders: Folders, model: str, graph: OperatorGraph) -> tuple[Sensitivities, str]:
    """Return the sensitivity of operators by label and precision, and a note on what it rests on.

    ``gvar`` is QSync's: the variance that rounding adds to gradients, from statistics of the model's tensors. ``unit``
    knows no tensors and orders operators by size and depth; it stands in for ``gvar`` where there are no statistics.

    Raises:
        RecordError: the statistics are damaged.
    """
    path = statistics_path(folders, model)
    if kind == GVAR and path.is_file():
        statistics = read_statistics(path)
        return indicator(graph, statistics), f"sensitivity by {path.name}, means over {statistics.steps} steps"
    if kind == GVAR:
        return indicator_without_statistics(graph), f"no {path}: sensitivity by size and depth of operators alone"
    return indicator_without_statistics(graph), "sensitivity by size and depth of operators alone"
