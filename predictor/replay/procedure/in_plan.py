"""A traced step in another plan of precisions: its tasks take what their operators and casts take there.

Tasks of an operator keep their shares of its time. Casts inside it, and what autograd runs for them, are the operator's
casts as traced; what a plan adds to them or takes away, by the casts that both plans need, is added there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from predictor.costs.cost import ZERO, Cost
from predictor.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.precision.plan_time import Cast, Costs, casts_of, propagate
from predictor.timeline.graph import replay_graph
from predictor.traces.global_replay import is_computing
from predictor.traces.local_graph import NO_OPERATOR, LocalGraph, TracedTask
from predictor.traces.local_replay import graph_tasks_of

Pass = Literal["forward", "backward"]
PASSES: tuple[Pass, ...] = ("forward", "backward")
CASTS = frozenset({"aten::_to_copy", "aten::to"})


@dataclass(frozen=True, slots=True)
class Changed:
    """A step in a plan.

    Attributes:
        local: with the new times of its tasks, started as replayed.
        cost: all changed operators and casts together; ZERO where nothing changes.
        before_us: what they took as traced.
        operators: how many operators changed.
    """

    local: LocalGraph
    cost: Cost
    before_us: float
    operators: int


@dataclass(frozen=True, slots=True)
class _Work:
    """The tasks of one pass of an operator: its own, and those of its casts; µs of each as traced."""

    own: dict[int, float]
    casts: dict[int, float]


def in_plan(local: LocalGraph, graph: OperatorGraph, plan: Plan, costs: Costs) -> Changed:
    """Return a step with its operators in a plan; operators that the plan does not name are as traced.

    Raises:
        PlanError: the graph cannot have the plan.
        ConfigError: a cost is not known.
    """
    before, after = propagate(graph, {}), propagate(graph, plan)
    more = _more_casts(graph, before, after, costs)
    parts = _parts(local)
    durations: dict[int, float] = {}
    total, traced_us, changed = ZERO, 0.0, 0
    for at, node in enumerate(graph.nodes):
        is_other = before[at] is not after[at]
        if not is_other and not any((at, step_pass) in more for step_pass in PASSES):
            continue
        changed += 1
        for step_pass in PASSES:
            work = _work(local, parts, node, step_pass)
            cost = _cost(costs, node, after[at], step_pass) if is_other else _as_traced(work)
            traced_us += sum(work.own.values()) + sum(work.casts.values())
            total += cost + _set(durations, work, cost, more.get((at, step_pass), ZERO))
    return Changed(_retimed(local, durations), total, traced_us, changed)


def _cost(costs: Costs, node: OperatorNode, precision: Precision, step_pass: Pass) -> Cost:
    return costs.forward(node, precision) if step_pass == "forward" else costs.backward(node, precision)


def _as_traced(work: _Work) -> Cost:
    us = sum(work.own.values())
    return Cost(us, us, us, ZERO.source)


def _set(durations: dict[int, float], work: _Work, cost: Cost, more: Cost) -> Cost:
    """Give an operator's tasks their new durations, and return the cost of its casts."""
    own, casts = sum(work.own.values()), sum(work.casts.values())
    if own > 0.0:
        durations.update({task: us * cost.us / own for task, us in work.own.items()})
    new = max(0.0, casts + more.us)
    if casts > 0.0:
        durations.update({task: us * new / casts for task, us in work.casts.items()})
    elif new > 0.0 and own > 0.0:
        first = next(iter(work.own))
        durations[first] += new
    return Cost(new, max(0.0, casts + more.low_us), max(0.0, casts + more.high_us), more.source)


def _more_casts(
    graph: OperatorGraph, before: Sequence[Precision], after: Sequence[Precision], costs: Costs
) -> dict[tuple[int, Pass], Cost]:
    """Return what casts cost more than before, by the operator and pass in which they run."""
    needed = [set(casts_of(graph, precisions)) for precisions in (before, after)]
    more: dict[tuple[int, Pass], Cost] = defaultdict(lambda: ZERO)
    for cast in needed[1] - needed[0]:
        more[_where(cast)] += costs.cast(cast.cast_from, cast.cast_to, cast.numel)
    for cast in needed[0] - needed[1]:
        cost = costs.cast(cast.cast_from, cast.cast_to, cast.numel)
        more[_where(cast)] += Cost(-cost.us, -cost.high_us, -cost.low_us, cost.source)
    return dict(more)


def _where(cast: Cast) -> tuple[int, Pass]:
    """Return the operator that runs a cast: the first that reads the tensor, in which autocast casts it."""
    return (cast.producer if cast.is_weight else cast.consumers[0]), cast.step_pass


@dataclass(frozen=True, slots=True)
class _Parts:
    """The operators inside each operator, and the backward operators of each."""

    children: Mapping[int, Sequence[int]]
    backwards: Mapping[int, Sequence[int]]


def _parts(local: LocalGraph) -> _Parts:
    children: dict[int, list[int]] = defaultdict(list)
    backwards: dict[int, list[int]] = defaultdict(list)
    for position, operator in enumerate(local.operators):
        children[operator.parent].append(position)
        if operator.forward != NO_OPERATOR:
            backwards[operator.forward].append(position)
    return _Parts(children, backwards)


def _work(local: LocalGraph, parts: _Parts, node: OperatorNode, step_pass: Pass) -> _Work:
    """Return the computing tasks of one pass of an operator."""
    calls = [node.forward] if step_pass == "forward" else list(node.backward)
    calls = [call for call in calls if call != NO_OPERATOR]
    inside = _cast_operators(local, parts, calls)
    if step_pass == "backward" and node.forward != NO_OPERATOR:
        forward_casts = _cast_operators(local, parts, [node.forward])
        inside += [call for cast in forward_casts for call in parts.backwards.get(cast, ()) if call not in calls]
    casts = {task for call in inside for task in local.operators[call].tasks}
    own = {task for call in calls for task in local.operators[call].tasks} - casts
    return _Work(_computing(local, own), _computing(local, casts))


def _cast_operators(local: LocalGraph, parts: _Parts, calls: Iterable[int]) -> list[int]:
    """Return the outermost casts inside operators."""
    casts: list[int] = []
    waiting = [child for call in calls for child in parts.children.get(call, ())]
    while waiting:
        position = waiting.pop()
        if local.operators[position].name in CASTS:
            casts.append(position)
        else:
            waiting += parts.children.get(position, ())
    return casts


def _computing(local: LocalGraph, tasks: Iterable[int]) -> dict[int, float]:
    chosen = ((task, local.tasks[task]) for task in sorted(tasks))
    return {position: task.duration_us for position, task in chosen if is_computing(local, task)}


def _retimed(local: LocalGraph, durations: Mapping[int, float]) -> LocalGraph:
    """Return a graph with new durations, its tasks started as early as they can."""
    if not durations:
        return local
    tasks = [
        task if position not in durations else task._replace(duration_us=durations[position])
        for position, task in enumerate(local.tasks)
    ]
    changed = replace(local, tasks=tasks)
    spans = replay_graph(graph_tasks_of(changed)).spans
    moved: list[TracedTask] = [
        task._replace(start_us=span.start_us, duration_us=span.end_us - span.start_us)
        for task, span in zip(tasks, spans, strict=True)
    ]
    return replace(changed, tasks=moved, step_us=max((span.end_us for span in spans), default=0.0))
