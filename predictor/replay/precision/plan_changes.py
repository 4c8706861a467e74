"""A traced step under another precision plan: new durations of its tasks, and added casts.

Times of operators change in proportion: the tasks in which an operator computes, kernels on a GPU and its thread's time
on a CPU, keep their shares of it. Casts that both plans need stay as traced. A cast that only the new plan needs is a
task of its own, before the operator that reads the tensor, or after the backward that made the gradient; those that
only the old plan needed take no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from predictor.core.costs.cost import ZERO, Cost
from predictor.core.timeline.graph import GraphTask
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TaskKind
from predictor.replay.graph.local_replay import graph_tasks_of
from predictor.replay.precision.cost_sources import Pass
from predictor.replay.precision.nesting import Inside
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan
from predictor.replay.precision.plan_time import Cast, Costs, casts_of, propagate
from predictor.replay.precision.rules import RULES

ON_GPU = frozenset({TaskKind.KERNEL, TaskKind.COPY})
ON_HOST = frozenset({TaskKind.HOST})


class InsertedCast(NamedTuple):
    """A cast that the traced step does not have.

    Attributes:
        at: position of the task that it runs beside, on its row.
        is_before: it runs before that task; otherwise after it.
        cost: of the cast.
        cast: what is cast.
    """

    at: int
    is_before: bool
    cost: Cost
    cast: Cast


NO_CASTS: tuple[list[InsertedCast], list[InsertedCast]] = ([], [])


class PlanChanges(NamedTuple):
    """What a plan changes in a step.

    Attributes:
        durations: new ones, by position of the task.
        inserted: casts that are added.
        before: what the changed operators and casts took as traced.
        after: what they and the inserted casts take.
        operators: how many operators compute in another precision.
    """

    durations: Mapping[int, float]
    inserted: Sequence[InsertedCast]
    before: Cost
    after: Cost
    operators: int


def plan_changes(local: LocalGraph, graph: OperatorGraph, plan: Plan, costs: Costs) -> PlanChanges:
    """Return what a plan changes in the step that a graph was made of; what it does not name is as traced.

    Raises:
        PlanError: the graph cannot have the plan.
        ConfigError: a cost is not known.
    """
    inside = Inside.of(local)
    as_traced = [node.traced for node in graph.nodes]
    precisions = propagate(graph, plan, RULES)
    old, new = (casts_of(graph, each, RULES) for each in (as_traced, precisions))
    durations: dict[int, float] = {}
    before = after = ZERO
    operators = 0
    for node, traced, precision in zip(graph.nodes, as_traced, precisions, strict=True):
        if precision is traced:
            continue
        operators += 1
        for step_pass in ("forward", "backward"):
            tasks = own_tasks(local, inside, node, step_pass)
            us = sum(tasks.values())
            cost = costs.forward(node, precision) if step_pass == "forward" else costs.backward(node, precision)
            if us <= 0.0:
                continue
            durations.update({task: share * cost.us / us for task, share in tasks.items()})
            before += Cost(us, us, us, ZERO.source)
            after += cost
    gone_us, less = _fewer_casts(local, inside, graph, set(old) - set(new), set(old), costs)
    durations.update(less)
    before += Cost(gone_us, gone_us, gone_us, ZERO.source)
    inserted = []
    for cast in new:
        if cast in set(old):
            continue
        place = _place(local, inside, graph, cast)
        cost = costs.cast(cast.cast_from, cast.cast_to, cast.numel)
        if place is not None and cost.us > 0.0:
            inserted.append(InsertedCast(*place, cost, cast))
            after += cost
    return PlanChanges(durations, inserted, before, after, operators)


def own_tasks(local: LocalGraph, inside: Inside, node: OperatorNode, step_pass: Pass) -> dict[int, float]:
    """Return the tasks in which an operator's pass computes, without those of casts inside it, with their times."""
    calls = _calls(node, step_pass)
    casts = {task for cast in inside.casts(local, calls) for task in local.operators[cast].tasks}
    tasks = (task for call in calls for task in local.operators[call].tasks if task not in casts)
    return _computing(local, tasks)


def cast_tasks(local: LocalGraph, inside: Inside, node: OperatorNode, step_pass: Pass) -> dict[int, float]:
    """Return the tasks of the casts inside an operator, or of their backward, with their times."""
    casts = inside.casts(local, [node.forward] if node.forward != NO_OPERATOR else [])
    if step_pass == "backward":
        below = (at for cast in casts for at in inside.below(cast))
        casts = [*inside.casts(local, node.backward), *(at for call in below for at in inside.backward.get(call, ()))]
    return _computing(local, (task for cast in casts for task in local.operators[cast].tasks))


def _calls(node: OperatorNode, step_pass: Pass) -> list[int]:
    calls = [node.forward] if step_pass == "forward" else list(node.backward)
    return [call for call in calls if call != NO_OPERATOR]


def _computing(local: LocalGraph, tasks: Iterable[int]) -> dict[int, float]:
    kinds = ON_HOST if local.backend == "cpu" else ON_GPU
    return {task: local.tasks[task].duration_us for task in sorted(set(tasks)) if local.tasks[task].kind in kinds}


def _fewer_casts(
    local: LocalGraph, inside: Inside, graph: OperatorGraph, gone: set[Cast], old: set[Cast], costs: Costs
) -> tuple[float, dict[int, float]]:
    """Return the time of the casts that are gone, and what the casts beside them in the same operators keep.

    Where an operator's casts are one of several, each has the share of its cost in theirs.
    """
    runs: defaultdict[tuple[int, Pass], list[Cast]] = defaultdict(list)
    for cast in old:
        runs[_runs_in(cast), cast.step_pass].append(cast)
    less: dict[int, float] = {}
    gone_us = 0.0
    for (position, step_pass), casts in runs.items():
        if not gone.intersection(casts):
            continue
        tasks = cast_tasks(local, inside, graph.nodes[position], step_pass)
        if not tasks:
            continue
        kept_share = 0.0
        if any(cast not in gone for cast in casts):
            us = {cast: costs.cast(cast.cast_from, cast.cast_to, cast.numel).us for cast in casts}
            whole = sum(us.values())
            kept_share = sum(us[cast] for cast in casts if cast not in gone) / whole if whole else 0.0
        gone_us += sum(tasks.values()) * (1.0 - kept_share)
        less.update({task: share * kept_share for task, share in tasks.items()})
    return gone_us, less


def _runs_in(cast: Cast) -> int:
    """Return the operator that autocast runs a cast in: the first that reads the tensor."""
    return cast.producer if cast.is_weight else cast.consumers[0]


def _place(local: LocalGraph, inside: Inside, graph: OperatorGraph, cast: Cast) -> tuple[int, bool] | None:
    """Return the task that a cast runs beside, and whether before it; None where the operator has no task.

    A cast for a forward pass runs before the first operator that reads it. A gradient is cast back after the backward
    that made it: of several consumers the one whose backward is last, which is that of the first.
    """
    node = graph.nodes[_runs_in(cast)]
    tasks = sorted(own_tasks(local, inside, node, cast.step_pass))
    if not tasks:
        return None
    return (tasks[0], True) if cast.step_pass == "forward" else (tasks[-1], False)


def changed_tasks(local: LocalGraph, changes: PlanChanges) -> list[GraphTask]:
    """Return a changed step for ``replay_graph``: the traced tasks in their order, and the casts beside theirs.

    A cast before a task waits for what the task waits for, and what waits for a task waits for a cast after it. On a
    GPU the host's time to launch a cast is not added.
    """
    traced = graph_tasks_of(local)
    beside: dict[int, tuple[list[InsertedCast], list[InsertedCast]]] = {}
    for inserted in changes.inserted:
        beside.setdefault(inserted.at, ([], []))[0 if inserted.is_before else 1].append(inserted)
    place: list[int] = []  # of every traced task in the new list
    ends: list[int] = []  # what has ended when it and the casts after it have
    at = 0
    for position in range(len(traced)):
        casts_before, casts_after = beside.get(position, NO_CASTS)
        place.append(at + len(casts_before))
        at += len(casts_before) + 1 + len(casts_after)
        ends.append(at - 1)
    tasks: list[GraphTask] = []
    for position, task in enumerate(traced):
        after = tuple(ends[other] for other in task.after)
        moved = task._replace(after=after, duration_us=changes.durations.get(position, task.duration_us))
        casts_before, casts_after = beside.get(position, NO_CASTS)
        tasks += [_cast_task(moved, inserted) for inserted in casts_before]
        tasks.append(moved)
        tasks += [
            _cast_task(moved._replace(after=(place[position],), lags_us=()), inserted) for inserted in casts_after
        ]
    return tasks


def _cast_task(beside: GraphTask, inserted: InsertedCast) -> GraphTask:
    cast = inserted.cast
    return beside._replace(
        name=f"cast {cast.cast_from} to {cast.cast_to}",
        duration_us=inserted.cost.us,
        details={"numel": cast.numel, "pass": cast.step_pass, "source": inserted.cost.source.label},
    )
