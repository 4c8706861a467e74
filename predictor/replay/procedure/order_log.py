"""``.log``: the topological order of a model's operators, and the longest path through the step."""

from __future__ import annotations

from collections.abc import Iterator

from predictor.replay.precision.operator_graph import OperatorGraph
from predictor.replay.procedure.documents import CriticalPath


def order_log(graph: OperatorGraph, path: CriticalPath) -> str:
    """Return the log: one line an operator, producers first, then one line a task of the critical path."""
    return "\n".join([*_order(graph), "", *_path(path)]) + "\n"


def _order(graph: OperatorGraph) -> Iterator[str]:
    yield f"topological order of {len(graph.nodes)} operators: position, depth, operator, label"
    for at, node in enumerate(graph.nodes):
        yield f"{at:6} {node.depth:5}  {node.name:36} {node.label}"


def _path(path: CriticalPath) -> Iterator[str]:
    yield (
        f"longest path of {path.origin.step}: {path.path_us:.1f} µs, {len(path.tasks)} tasks: "
        "start µs, duration µs, edge before it, where, task"
    )
    for task in path.tasks:
        yield f"{task.start_us:13.1f} {task.duration_us:11.1f}  {task.waits_for or 'start':9} {task.row:16} {task.name}"
