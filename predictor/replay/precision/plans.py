"""Plans that no other plan beats: the fastest, the fastest under a budget, and the least sensitive within a time.

All three minimise the sum of ``plan_time`` over every plan of the graph, by dynamic programming over a sweep of its
operators (``sweep``, ``labels``). They are exact as long as the graph's frontier is small, which it is for chains and
series-parallel graphs such as residual and attention blocks; where it is not, the answer says so and how far it can be
from the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from predictor.replay.precision.labels import MAX_LABELS, Constrained, Infeasible, least_under
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.plan_terms import PlanTerms, Resource, plan_terms
from predictor.replay.precision.plan_time import Costs, PlanError
from predictor.replay.precision.rules import RULES, PrecisionRules
from predictor.replay.precision.sweep import MAX_STATES, complete, sweep

Sensitivities = Mapping[str, Mapping[Precision, float]]  # by label of the operator


@dataclass(frozen=True, slots=True)
class BestPlan:
    """The answer of a search.

    Attributes:
        plan: precision of every operator that has one to choose.
        us: time of the plan.
        resource: of the budget, bytes or sensitivity; of the least sensitive plan its sensitivity. 0 without a budget.
        lower_bound: no plan within the budget has a smaller objective: time, or sensitivity.
        is_exact: no plan within the budget is better.
        width: operators and helpers whose precisions the search had to keep at once.
    """

    plan: Mapping[str, Precision]
    us: float
    resource: float
    lower_bound: float
    is_exact: bool
    width: int


def fastest_plan(
    graph: OperatorGraph, costs: Costs, rules: PrecisionRules = RULES, max_states: int = MAX_STATES
) -> BestPlan:
    """Return the plan with the least time.

    Args:
        graph: of operators.
        costs: of operators in precisions and of casts.
        rules: of casts.
        max_states: combinations of precisions kept at once; beyond them the answer need not be exact.

    Raises:
        ConfigError: a cost is not known, or the graph is not in order.
    """
    terms = plan_terms(graph, costs, rules, _nothing)
    searched = sweep(terms, max_states)
    best = complete(searched)
    if best is None:
        raise _too_wide(searched.width, max_states)
    bound = min(best.objective, searched.dropped)
    plan = _plan(graph, terms, best.values)
    return BestPlan(plan, best.objective, 0.0, bound, bound >= best.objective, searched.width)


def fastest_plan_under(
    graph: OperatorGraph,
    costs: Costs,
    *,
    memory_bytes: float | None = None,
    memory: Resource | None = None,
    sensitivity: float | None = None,
    indicator: Sensitivities | None = None,
    rules: PrecisionRules = RULES,
    max_states: int = MAX_STATES,
    max_labels: int = MAX_LABELS,
) -> BestPlan:
    """Return the plan with the least time under one budget.

    Args:
        graph: of operators.
        costs: of operators in precisions and of casts.
        memory_bytes: budget of what ``memory`` counts.
        memory: bytes that an operator in a precision takes.
        sensitivity: budget of the sum of the indicator over the operators.
        indicator: by label and precision; a label that it lacks has none.
        rules: of casts.
        max_states: combinations of precisions kept at once.
        max_labels: trade-offs of time and resource kept at once.

    Raises:
        PlanError: no plan is within the budget, or there is not exactly one budget.
        ConfigError: a cost is not known, or the graph is not in order.
    """
    if (memory_bytes is None) == (sensitivity is None):
        raise PlanError("give one budget: memory_bytes or sensitivity")
    if memory_bytes is not None:
        if memory is None:
            raise PlanError("memory_bytes needs memory, the bytes of an operator in a precision")
        budget, resource, name = memory_bytes, memory, "memory_bytes"
    else:
        assert sensitivity is not None
        if indicator is None:
            raise PlanError("sensitivity needs indicator, the sensitivity of operators in precisions")
        budget, resource, name = sensitivity, sensitivity_of(indicator), "sensitivity"
    terms = plan_terms(graph, costs, rules, resource)
    best, width = _least(terms, budget, name, max_states, max_labels)
    plan = _plan(graph, terms, best.values)
    return BestPlan(plan, best.objective, best.resource, best.lower_bound, best.is_exact, width)


def least_sensitive_plan(
    graph: OperatorGraph,
    costs: Costs,
    indicator: Sensitivities,
    within_us: float,
    rules: PrecisionRules = RULES,
    max_states: int = MAX_STATES,
    max_labels: int = MAX_LABELS,
) -> BestPlan:
    """Return the plan with the least sensitivity among those that are fast enough: what ``greedy_plan`` aims at.

    Raises:
        PlanError: no plan is.
        ConfigError: a cost is not known, or the graph is not in order.
    """
    terms = plan_terms(graph, costs, rules, sensitivity_of(indicator), resource_is_objective=True)
    best, width = _least(terms, within_us, "within_us", max_states, max_labels)
    plan = _plan(graph, terms, best.values)
    return BestPlan(plan, best.resource, best.objective, best.lower_bound, best.is_exact, width)


def sensitivity_of(indicator: Sensitivities) -> Resource:
    """Return the sensitivity of an operator in a precision; 0 where the indicator has none."""
    return lambda node, precision: indicator.get(node.label, {}).get(precision, 0.0)


def _nothing(node: OperatorNode, precision: Precision) -> float:
    return 0.0


def _least(terms: PlanTerms, budget: float, name: str, max_states: int, max_labels: int) -> tuple[Constrained, int]:
    searched = sweep(terms, max_states)
    if complete(searched) is None:
        raise _too_wide(searched.width, max_states)
    try:
        return least_under(searched, budget, max_labels), searched.width
    except Infeasible as error:
        kept = "" if searched.dropped == inf else " of those searched"
        raise PlanError(f"{name} is {budget:.6g}; the least that a plan{kept} takes is {error.least:.6g}") from None


def _too_wide(width: int, max_states: int) -> PlanError:
    return PlanError(
        f"{max_states} states are too few for a graph whose frontier is {width} operators wide; raise max_states"
    )


def _plan(graph: OperatorGraph, terms: PlanTerms, values: Mapping[int, int]) -> dict[str, Precision]:
    """Return precisions by label, of operators with a choice."""
    return {
        node.label: terms.domains[position][values.get(position, 0)]
        for position, node in enumerate(graph.nodes)
        if node.choices
    }
