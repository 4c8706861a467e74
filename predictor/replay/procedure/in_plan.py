"""A traced step in another plan of precisions: its tasks take what their operators and casts take there.

Tasks of an operator keep their shares of its time. Casts inside it, and what autograd runs for them, are the operator's
casts as traced; what a plan adds to them or takes away, by the casts that both plans need, is added there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from predictor.costs.cost import ZERO, Cost, total
from predictor.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.precision.plan_time import Cast, Costs, casts_of, propagate
from predictor.traces.global_replay import is_computing
from predictor.traces.local_graph import NO_OPERATOR, LocalGraph

Pass = Literal["forward", "backward"]
PASSES: tuple[Pass, ...] = ("forward", "backward")
CASTS = frozenset({"aten::_to_copy", "aten::to"})


@dataclass(frozen=True, slots=True)
class PlanChange:
    """What a plan changes in one rank's step.

    Attributes:
        costs: of the tasks that take another time, by position in the local graph.
        before_us: what the changed operators and their casts took as traced.
        operators: how many change.
    """

    costs: dict[int, Cost]
    before_us: float
    operators: int

    @property
    def after(self) -> Cost:
        """Return what they take in the plan."""
        return total(self.costs.values())


@dataclass(frozen=True, slots=True)
class _Work:
    """The tasks of one pass of an operator: its own, and those of its casts; µs of each as traced."""

    own: dict[int, float]
    casts: dict[int, float]


def in_plan(local: LocalGraph, graph: OperatorGraph, plan: Plan, costs: Costs) -> PlanChange:
    """Return what changes if operators compute in a plan; those that the plan does not name are as traced.

    Raises:
        PlanError: the graph cannot have the plan.
        ConfigError: a cost is not known.
    """
    before, after = propagate(graph, {}), propagate(graph, plan)
    more = _more_casts(graph, before, after, costs)
    parts = _parts(local)
    tasks: dict[int, Cost] = {}
    traced_us, changed = 0.0, 0
    for at, node in enumerate(graph.nodes):
        is_other = before[at] is not after[at]
        if not is_other and not any((at, step_pass) in more for step_pass in PASSES):
            continue
        changed += 1
        for step_pass in PASSES:
            work = _work(local, parts, node, step_pass)
            traced_us += sum(work.own.values()) + sum(work.casts.values())
            if is_other:
                tasks |= _shared(work.own, _cost(costs, node, after[at], step_pass))
            tasks |= _with_casts(tasks, work, more.get((at, step_pass), ZERO))
    return PlanChange(tasks, traced_us, changed)


def _cost(costs: Costs, node: OperatorNode, precision: Precision, step_pass: Pass) -> Cost:
    return costs.forward(node, precision) if step_pass == "forward" else costs.backward(node, precision)


def _shared(tasks: Mapping[int, float], cost: Cost) -> dict[int, Cost]:
    """Return a cost divided among tasks in proportion to their times as traced."""
    us = sum(tasks.values())
    return {task: cost * (own / us) for task, own in tasks.items()} if us > 0.0 else {}


def _with_casts(tasks: Mapping[int, Cost], work: _Work, more: Cost) -> dict[int, Cost]:
    """Return the costs of an operator's casts; those of an operator without any go to its first task."""
    if not more.us:
        return {}
    us = sum(work.casts.values())
    cost = Cost(max(0.0, us + more.us), max(0.0, us + more.low_us), max(0.0, us + more.high_us), more.source)
    if us > 0.0:
        return _shared(work.casts, cost)
    first = next((task for task, own in work.own.items() if own > 0.0), None)
    if first is None or not cost.us:
        return {}
    own = work.own[first]
    return {first: tasks.get(first, Cost(own, own, own, ZERO.source)) + cost}


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
