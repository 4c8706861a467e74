"""The least objective under a budget: labels of (objective, resource) over the states of a sweep.

The problem is a shortest path with a resource constraint. Labels that another one of the same state dominates are
dropped, and those whose best completion cannot beat the best solution known; the bound is the Lagrangian one, with the
multiplier that the dual problem gives. Source: Handler and Zang, "A dual algorithm for the constrained shortest path
problem", Networks 10, 1980; Dumitrescu and Boland, Networks 42, 2003, on the use of the bounds in label setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from predictor.replay.precision.sweep import Completion, Sweep, complete

MAX_LABELS = 4_000  # of one layer, before labels are thinned
WARM_UP = (300, 1_000)
ROUNDS = 60
ROUNDING = 1e-9  # relative, of sums in another order


class Label(NamedTuple):
    """A way to a state."""

    resource: float
    objective: float
    value: int
    before: Label | None


@dataclass(frozen=True, slots=True)
class Constrained:
    """The least objective under a budget.

    Attributes:
        objective: of the solution.
        resource: likewise.
        values: of every decided variable, as positions in their domains.
        lower_bound: no solution within the budget has a lower objective.
        is_exact: none has a lower one than this.
    """

    objective: float
    resource: float
    values: dict[int, int]
    lower_bound: float
    is_exact: bool


class Infeasible(ValueError):  # noqa: N818 (says what the problem is; callers turn it into a PlanError)
    """No solution is within the budget."""

    def __init__(self, least: float) -> None:
        """Keep the least of the resource that a solution needs."""
        super().__init__(f"no solution takes less than {least}")
        self.least = least


@dataclass(slots=True)
class _Bounds:
    """What is known before labels are set: the best solution, and bounds on completions."""

    best: Completion
    dual: float
    multiplier: float
    weighted: list[list[float]]
    objective: list[list[float]]
    resource: list[list[float]]


def least_under(sweep: Sweep, budget: float, max_labels: int = MAX_LABELS) -> Constrained:
    """Return the least objective among solutions that take no more than a budget.

    With more than ``max_labels`` labels in a layer they are thinned: the result keeps the budget, ``is_exact`` is false
    and ``lower_bound`` says how far it can be from the best.

    Raises:
        Infeasible: no solution does.
    """
    fastest, frugal = complete(sweep), complete(sweep, 0.0, 1.0)
    assert fastest is not None
    assert frugal is not None
    slack = ROUNDING * max(abs(budget), abs(frugal.resource))
    if frugal.resource > budget + slack:
        raise Infeasible(frugal.resource)
    if fastest.resource <= budget + slack:
        bound = min(fastest.objective, sweep.dropped)
        return Constrained(fastest.objective, fastest.resource, fastest.values, bound, bound >= fastest.objective)
    bounds = _dual(sweep, budget + slack, fastest, frugal)
    objective, resource, values = bounds.best.objective, bounds.best.resource, bounds.best.values
    # Few labels are soon set, and the better solution that they give drops most labels of the next pass.
    for few in sorted({min(labels, max_labels) for labels in (*WARM_UP, max_labels)}):
        label, is_whole = _set_labels(sweep, budget + slack, bounds, objective, few)
        if label is not None and label.objective < objective:
            objective, resource, values = label.objective, label.resource, _values(sweep, label)
        if is_whole:
            break
    lower = min(objective if is_whole else bounds.dual, sweep.dropped)
    return Constrained(objective, resource, values, min(lower, objective), lower >= objective)


def _dual(sweep: Sweep, budget: float, fastest: Completion, frugal: Completion) -> _Bounds:
    """Solve the Lagrangian dual by cutting planes between a solution over the budget and one within it."""
    over, within = fastest, frugal
    best, dual, multiplier, weighted = frugal, fastest.objective, 0.0, fastest.to_go
    for _ in range(ROUNDS):
        slope = (within.objective - over.objective) / (over.resource - within.resource)
        if slope <= 0.0:
            break
        middle = complete(sweep, 1.0, slope)
        assert middle is not None
        value = middle.objective + slope * (middle.resource - budget)
        if value > dual:
            dual, multiplier, weighted = value, slope, middle.to_go
        if middle.resource <= budget and middle.objective < best.objective:
            best = middle
        line = over.objective + slope * (over.resource - budget)
        if value >= line - ROUNDING * max(1.0, abs(line)):
            break
        if middle.resource <= budget:
            within = middle
        else:
            over = middle
    return _Bounds(best, dual, multiplier, weighted, fastest.to_go, frugal.to_go)


def _set_labels(
    sweep: Sweep, budget: float, bounds: _Bounds, best: float, max_labels: int
) -> tuple[Label | None, bool]:
    """Return the best label of the end, None if none beats the best objective known, and whether none was thinned."""
    limit = best - ROUNDING * abs(best)
    multiplier, is_whole = bounds.multiplier, True
    labels: list[list[Label]] = [[Label(sweep.constant[1], sweep.constant[0], 0, None)]]
    for number, layer in enumerate(sweep.layers):
        weighted, objectives, resources = (
            table[number + 1] for table in (bounds.weighted, bounds.objective, bounds.resource)
        )
        after: list[list[Label]] = [[] for _ in range(layer.num_states)]
        for before, value, to, objective, resource in layer.moves:
            most = budget - resources[to]
            least = limit - objectives[to]
            lagrangian = limit + multiplier * budget - weighted[to]
            reached = after[to]
            for label in labels[before]:
                taken = label.resource + resource
                spent = label.objective + objective
                if taken <= most and spent < least and spent + multiplier * taken < lagrangian:
                    reached.append(Label(taken, spent, value, label))
        labels = [_undominated(reached) for reached in after]
        if sum(map(len, labels)) > max_labels:
            labels, is_whole = _thinned(labels, multiplier, max_labels), False
    ends = [label for reached in labels for label in reached]
    return min(ends, key=lambda label: label.objective, default=None), is_whole


def _undominated(labels: list[Label]) -> list[Label]:
    """Return the labels that no other one of their state is as good as in both, by resource."""
    labels.sort(key=_by_resource)
    kept: list[Label] = []
    least = inf
    for label in labels:
        if label.objective < least:
            least = label.objective
            kept.append(label)
    return kept


def _by_resource(label: Label) -> tuple[float, float]:
    return label.resource, label.objective


def _thinned(labels: Sequence[list[Label]], multiplier: float, max_labels: int) -> list[list[Label]]:
    """Keep, of each state, the label with the least Lagrangian bound in each of equal ranges of the resource."""
    share = max(2, max_labels // max(1, sum(1 for reached in labels if reached)))
    thin = []
    for reached in labels:
        if len(reached) <= share:
            thin.append(reached)
            continue
        low, high = reached[0].resource, reached[-1].resource
        least: dict[int, tuple[float, Label]] = {}
        for label in reached:
            part = int((label.resource - low) / (high - low) * share)
            bound = label.objective + multiplier * label.resource
            if part not in least or bound < least[part][0]:
                least[part] = (bound, label)
        thin.append([label for _, label in least.values()])
    return thin


def _values(sweep: Sweep, label: Label) -> dict[int, int]:
    values: dict[int, int] = {}
    for layer in reversed(sweep.layers):
        values[layer.variable] = label.value
        assert label.before is not None
        label = label.before
    return values
