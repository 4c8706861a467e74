"""``cng`` and ``cng_data``: the longest path through a replayed step, and the data on it."""

from __future__ import annotations

from collections import defaultdict

from predictor.core.timeline.graph import GraphReplay
from predictor.replay.graph.local_graph import NO_OPERATOR, EdgeKind, LocalGraph, TracedOperator
from predictor.replay.procedure.documents import CriticalData, CriticalPath, PathOperator, PathTask, Provenance

LAG = "lag"
Key = tuple[str, str, tuple[tuple[int, ...], ...], tuple[str, ...]]


def critical_path(origin: Provenance, local: LocalGraph, replayed: GraphReplay) -> CriticalPath:
    """Return the critical path, task after task, with the edge that each waited for."""
    tasks = []
    before: int | None = None
    for position in replayed.critical_path:
        task, span = local.tasks[position], replayed.spans[position]
        kinds = [edge.kind for edge in task.after if edge.task == before]
        waits_for: str | None = None if before is None else str(kinds[0] if kinds else EdgeKind.ROW)
        tasks.append(
            PathTask(
                task=position,
                name=task.name,
                kind=task.kind,
                row=local.rows[task.row],
                start_us=span.start_us,
                duration_us=span.end_us - span.start_us,
                waits_for=waits_for,
            )
        )
        before = position
    return CriticalPath(origin=origin, path_us=replayed.makespan_us, tasks=tuple(tasks))


def critical_data(origin: Provenance, local: LocalGraph, replayed: GraphReplay) -> CriticalData:
    """Return what the critical path computes on: its operators by their shapes, the largest share first."""
    kinds: dict[str, float] = defaultdict(float)
    times: dict[Key, float] = defaultdict(float)
    calls: dict[Key, set[int]] = defaultdict(set)
    examples: dict[Key, TracedOperator] = {}
    reached = 0.0
    for position in replayed.critical_path:
        task, span = local.tasks[position], replayed.spans[position]
        lasted = span.end_us - span.start_us
        kinds[task.kind] += lasted
        kinds[LAG] += max(0.0, span.start_us - reached)
        reached = span.end_us
        if task.operator != NO_OPERATOR:
            operator = local.operators[task.operator]
            key = operator.name, operator.step_pass, operator.shapes, operator.dtypes
            times[key] += lasted
            calls[key].add(task.operator)
            examples.setdefault(key, operator)
    path_us = replayed.makespan_us
    operators = [
        PathOperator(
            operator=examples[key].name,
            step_pass=examples[key].step_pass,
            scope=examples[key].scope,
            shapes=examples[key].shapes,
            dtypes=examples[key].dtypes,
            calls=len(calls[key]),
            on_path_us=us,
            share=min(1.0, us / path_us) if path_us else 0.0,
        )
        for key, us in sorted(times.items(), key=lambda item: -item[1])
    ]
    return CriticalData(origin=origin, path_us=path_us, kinds_us=dict(kinds), operators=tuple(operators))
