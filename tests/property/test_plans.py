"""Searches over plans agree with brute force on random graphs."""

from __future__ import annotations

from itertools import product
from math import isclose

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.core.costs.cost import Cost, Source
from predictor.replay.precision.greedy import PlanClock
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.replay.precision.plan_time import PlanError, plan_time
from predictor.replay.precision.plans import fastest_plan, fastest_plan_under, least_sensitive_plan
from predictor.replay.precision.rules import PrecisionRules

CHOICES = (Precision.FP32, Precision.FP16, Precision.INT8)
AS_INPUT: tuple[Precision, ...] = ()


def microseconds(us: float) -> Cost:
    return Cost(us, us, us, Source.MEASURED)


class TableCosts:
    """Costs drawn at random."""

    def __init__(self, operators: dict[tuple[str, Precision], float], casts: dict[tuple[Precision, Precision], float]):
        self.operators, self.casts = operators, casts

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        return microseconds(self.operators[node.label, precision])

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        return microseconds(self.operators[node.label, precision] * 2)

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        return microseconds(self.casts[cast_from, cast_to] * numel + 1.0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[OperatorGraph, TableCosts]:
    """A random graph in which each operator reads any of the earlier ones, and random costs."""
    size = draw(st.integers(1, 8))
    nodes: list[OperatorNode] = []
    tensors: list[Tensor] = []
    for position in range(size):
        choices = draw(st.sampled_from([CHOICES, CHOICES, CHOICES[:2], CHOICES[1:2], AS_INPUT, AS_INPUT]))
        producers = draw(st.sets(st.integers(0, position - 1), max_size=5)) if position else set()
        numel = draw(st.integers(1, 9))
        tensors += [Tensor(producer, position, nodes[producer].output_numel) for producer in sorted(producers)]
        nodes.append(
            OperatorNode(
                name="aten::linear",
                label=f"operator {position}",
                depth=position,
                shapes=(),
                weight_numel=draw(st.sampled_from([0, 3])),
                output_numel=numel,
                saved_numel=numel,
                choices=choices,
            )
        )
    amounts = st.integers(0, 40).map(float)
    operators = {(node.label, precision): draw(amounts) for node in nodes for precision in Precision}
    casts = {pair: draw(st.integers(0, 5).map(float)) for pair in product(Precision, Precision)}
    return OperatorGraph(nodes, tensors), TableCosts(operators, casts)


def all_plans(graph: OperatorGraph) -> list[dict[str, Precision]]:
    labels = [node.label for node in graph.nodes if node.choices]
    choices = [node.choices for node in graph.nodes if node.choices]
    return [dict(zip(labels, precisions, strict=True)) for precisions in product(*choices)]


@settings(max_examples=120)
@given(problems(), st.booleans())
def test_the_fastest_plan_is_the_fastest_of_all_plans(
    problem: tuple[OperatorGraph, TableCosts], shares_casts: bool
) -> None:
    graph, costs = problem
    rules = PrecisionRules(shares_casts=shares_casts)
    best = fastest_plan(graph, costs, rules)
    assert best.is_exact
    assert isclose(best.us, plan_time(graph, best.plan, costs, rules).us)
    assert isclose(best.us, PlanClock(graph, costs, rules).us(best.plan))
    assert isclose(best.us, min(plan_time(graph, plan, costs, rules).us for plan in all_plans(graph)))


@settings(max_examples=120)
@given(problems(), st.data())
def test_the_fastest_plan_under_a_budget_is_the_fastest_of_the_plans_within_it(
    problem: tuple[OperatorGraph, TableCosts], data: st.DataObject
) -> None:
    graph, costs = problem
    amounts = st.integers(0, 30).map(float)
    indicator = {
        node.label: {precision: data.draw(amounts) for precision in node.choices}
        for node in graph.nodes
        if node.choices
    }
    budget = data.draw(st.integers(0, 30 * len(graph.nodes)))

    def sensitivity(plan: dict[str, Precision]) -> float:
        return sum(indicator[label][precision] for label, precision in plan.items())

    timed = [(plan_time(graph, plan, costs).us, sensitivity(plan)) for plan in all_plans(graph)]
    within = [us for us, total in timed if total <= budget]
    if not within:
        with pytest.raises(PlanError, match="the least that a plan takes"):
            fastest_plan_under(graph, costs, sensitivity=budget, indicator=indicator)
        return
    best = fastest_plan_under(graph, costs, sensitivity=budget, indicator=indicator)
    assert best.is_exact
    assert isclose(best.us, min(within), abs_tol=1e-6)
    assert isclose(best.us, plan_time(graph, best.plan, costs).us)
    assert isclose(best.resource, sensitivity(dict(best.plan)), abs_tol=1e-9)
    assert best.resource <= budget * (1 + 1e-6)
    gentle = least_sensitive_plan(graph, costs, indicator, within_us=min(within))
    assert isclose(gentle.resource, min(total for us, total in timed if us <= min(within) * (1 + 1e-9)), abs_tol=1e-6)


@settings(max_examples=60)
@given(problems(), st.integers(1, 6), st.integers(2, 5))
def test_a_search_that_drops_states_or_labels_says_how_far_it_can_be_off(
    problem: tuple[OperatorGraph, TableCosts], max_states: int, max_labels: int
) -> None:
    graph, costs = problem
    least = min(plan_time(graph, plan, costs).us for plan in all_plans(graph))
    try:
        best = fastest_plan(graph, costs, max_states=max_states)
    except PlanError:  # the states that were kept lead to no plan
        assert max_states < len(all_plans(graph))
        return
    assert isclose(best.us, plan_time(graph, best.plan, costs).us)
    assert best.lower_bound <= least + 1e-6
    assert best.us >= least - 1e-6
    assert not best.is_exact or isclose(best.us, least, abs_tol=1e-6)
    indicator = {node.label: {precision: float(precision.bytes) for precision in node.choices} for node in graph.nodes}
    sizes = [sum(indicator[label][precision] for label, precision in plan.items()) for plan in all_plans(graph)]
    budget = sorted(sizes)[len(sizes) // 2]
    timed = zip((plan_time(graph, plan, costs).us for plan in all_plans(graph)), sizes, strict=True)
    within = [us for us, size in timed if size <= budget]
    try:
        under = fastest_plan_under(
            graph, costs, sensitivity=budget, indicator=indicator, max_states=max_states, max_labels=max_labels
        )
    except PlanError:  # likewise, or to none within the budget
        assert not best.is_exact or max_states < len(all_plans(graph))
        return
    assert under.resource <= budget + 1e-6
    assert under.lower_bound <= min(within) + 1e-6
    assert under.us >= min(within) - 1e-6
    assert not under.is_exact or isclose(under.us, min(within), abs_tol=1e-6)
