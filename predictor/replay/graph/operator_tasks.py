"""Traced operators with their tasks and their time."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.replay.files.events import RankTrace
from predictor.replay.graph.local_graph import NO_OPERATOR, TaskKind, TracedOperator, TracedTask
from predictor.replay.graph.operators import OperatorTable, dtypes_of, shapes_of
from predictor.replay.graph.step_events import StepEvents


def traced_operators(
    trace: RankTrace, step: StepEvents, table: OperatorTable, tasks: Sequence[TracedTask]
) -> list[TracedOperator]:
    """Return the operators of a step, by start.

    Args:
        trace: of a rank.
        step: of it.
        table: the step's operators.
        tasks: of the step, in their order.
    """
    own: list[list[int]] = [[] for _ in table.events]
    for number, task in enumerate(tasks):
        if task.operator != NO_OPERATOR:
            own[task.operator].append(number)
    for operator in reversed(range(len(own))):  # inner ones come after those around them
        parent = table.parents[operator]
        if parent != NO_OPERATOR:
            own[parent].extend(own[operator])
    on_gpu = bool(step.gpu) or trace.backend != "cpu"
    operators = []
    for operator, position in enumerate(table.events):
        event = trace.events[position]
        numbers = tuple(sorted(own[operator]))
        operators.append(
            TracedOperator(
                name=table.name(operator, event),
                step_pass=table.passes[operator],
                forward=table.forwards[operator],
                scope=table.scopes[operator],
                shapes=shapes_of(event.args),
                dtypes=dtypes_of(event.args),
                us=_us([tasks[number] for number in numbers], on_gpu),
                tasks=numbers,
                parent=table.parents[operator],
                external=event.external,
                event=position,
            )
        )
    return operators


def _us(tasks: Sequence[TracedTask], on_gpu: bool) -> float:
    """Return how long tasks compute: on a GPU its kernels, copies and collectives, otherwise the thread's."""
    if on_gpu:
        return sum(task.duration_us for task in tasks if task.kind not in (TaskKind.HOST, TaskKind.WAIT))
    return sum(task.duration_us for task in tasks if task.kind is TaskKind.HOST)
