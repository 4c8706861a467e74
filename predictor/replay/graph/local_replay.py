"""Replay a traced step on the timeline of predicted steps."""

from __future__ import annotations

from predictor.core.timeline.graph import GraphReplay, GraphTask, replay_graph
from predictor.replay.graph.local_graph import LocalGraph


def graph_tasks_of(local: LocalGraph) -> list[GraphTask]:
    """Return the tasks of a step for ``replay_graph``, in the same order; ``details`` has what a viewer shows."""
    tasks = []
    for task in local.tasks:
        operator = local.operators[task.operator].name if task.operator >= 0 else ""
        tasks.append(
            GraphTask(
                name=task.name,
                rank=local.rank,
                stream=local.rows[task.row],
                duration_us=task.duration_us,
                after=tuple(edge.task for edge in task.after),
                lags_us=tuple(edge.lag_us for edge in task.after),
                category=task.kind.value,
                details={"operator": operator} if operator else {},
            )
        )
    return tasks


def replay_local(local: LocalGraph) -> GraphReplay:
    """Replay a step unchanged: every task starts as it was measured, up to rounding of sums.

    Raises:
        GraphError: its tasks wait for each other in a circle.
    """
    return replay_graph(graph_tasks_of(local))
