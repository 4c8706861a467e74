"""Time of plans and the searches over them, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.replay.precision.greedy import greedy_plan
from predictor.replay.precision.operator_graph import OperatorGraph, Precision, Tensor
from predictor.replay.precision.plan_time import PlanError, casts_of, plan_time, propagate, uniform_plan
from predictor.replay.precision.plans import fastest_plan, fastest_plan_under, least_sensitive_plan
from predictor.replay.precision.rules import PrecisionRules, widest
from tests.unit.precision_graphs import BF16, FP16, FP32, INT8, FixedCosts, chain, cheap, node


def test_a_plan_casts_activations_forward_and_their_gradients_back() -> None:
    graph = chain(node("a"), node("b"))
    costs = cheap(graph, fp32=100.0, fp16=60.0)
    time = plan_time(graph, {"a": FP32, "b": FP16}, costs)
    assert time.forward.us == time.backward.us == 80.0
    assert time.casts.us == 2 * 110.0  # the activation to fp16, its gradient to fp32
    assert time.us == 380.0


def test_weights_are_cast_from_their_master_copies_and_their_gradients_back() -> None:
    graph = chain(node("a", weights=50))
    casts = casts_of(graph, [FP16])
    assert [(cast.cast_from, cast.cast_to, cast.numel, cast.step_pass) for cast in casts] == [
        (FP32, FP16, 50, "forward"),
        (FP16, FP32, 50, "backward"),
    ]
    assert casts_of(graph, [FP32]) == []
    with_bias = chain(replace(node("a", weights=50), weight_numels=(40, 10)))
    assert [cast.numel for cast in casts_of(with_bias, [FP16])] == [40, 40, 10, 10]
    assert casts_of(graph, [FP16], PrecisionRules(weights=FP16)) == []


def test_autocast_casts_for_every_consumer_and_a_backend_may_share_the_casts() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d")]
    graph = OperatorGraph(nodes, [Tensor(0, 1, 100), Tensor(0, 2, 100), Tensor(0, 3, 100)])
    casts = casts_of(graph, [FP32, FP16, FP16, FP32])
    assert [(cast.consumers, cast.step_pass) for cast in casts] == [
        ((1,), "forward"), ((1,), "backward"), ((2,), "forward"), ((2,), "backward"),
    ]  # fmt: skip
    shared = casts_of(graph, [FP32, FP16, FP16, FP32], PrecisionRules(shares_casts=True))
    assert [(cast.consumers, cast.step_pass) for cast in shared] == [((1, 2), "forward"), ((1, 2), "backward")]


def test_int8_reads_and_writes_fp32_and_its_backward_is_in_fp16() -> None:
    graph = chain(node("a", (INT8,)), node("b", (INT8,)), node("c", (FP32,)))
    casts = casts_of(graph, [INT8, INT8, FP32])
    assert [(cast.producer, cast.cast_from, cast.cast_to, cast.step_pass) for cast in casts] == [
        (0, FP32, INT8, "forward"),
        (1, FP32, FP16, "backward"),
    ]


def test_tf32_tensors_are_fp32_tensors() -> None:
    graph = chain(node("a", (FP32,)), node("b", (Precision.TF32,), weights=10), node("c", (FP32,)))
    assert casts_of(graph, [FP32, Precision.TF32, FP32]) == []


def test_an_operator_without_a_choice_computes_in_the_widest_of_its_inputs() -> None:
    nodes = [node("a", (FP16, BF16)), node("b", (FP16, FP32)), node("sum", ())]
    graph = OperatorGraph(nodes, [Tensor(0, 2, 1), Tensor(1, 2, 1)])
    assert propagate(graph, {"a": FP16, "b": FP16})[2] is FP16
    assert propagate(graph, {"a": BF16, "b": FP16})[2] is FP32  # as torch.promote_types
    assert propagate(graph, {"a": FP16, "b": FP32})[2] is FP32
    assert widest([INT8, FP16]) is FP16


def test_a_plan_that_a_graph_cannot_have_is_refused_by_name() -> None:
    graph = chain(node("linear 1"), node("relu", ()))
    with pytest.raises(PlanError, match="linear 2, which is no operator of the graph"):
        propagate(graph, {"linear 2": FP16})
    with pytest.raises(PlanError, match="gives linear 1 int8; its choices are fp32, fp16"):
        propagate(graph, {"linear 1": INT8})
    with pytest.raises(PlanError, match="relu fp16; it computes as its inputs are"):
        propagate(graph, {"relu": FP16})
    with pytest.raises(PlanError, match="producers come before consumers"):
        casts_of(OperatorGraph(graph.nodes, [Tensor(1, 0, 5)]), [FP32, FP32])


def test_the_fastest_plan_weighs_casts_against_operators() -> None:
    graph = chain(node("a"), node("b"), node("c"))
    costs = FixedCosts(
        {("a", FP32): 100, ("a", FP16): 90, ("b", FP32): 100, ("b", FP16): 500, ("c", FP32): 900, ("c", FP16): 100}
    )
    best = fastest_plan(graph, costs)
    assert best.plan == {"a": FP32, "b": FP32, "c": FP16}
    assert best.us == 100 + 100 + 100 + 2 * 110
    assert best.is_exact
    assert best.lower_bound == best.us


def test_a_wide_join_of_many_inputs_stays_exact() -> None:
    """Twenty-six embeddings that meet in one operator, as in a recommender: no frontier holds all of them."""
    nodes = [node(f"table {at}") for at in range(26)]
    graph = OperatorGraph([*nodes, node("cat", ()), node("top")], [
        *(Tensor(at, 26, 100) for at in range(26)), Tensor(26, 27, 2600)
    ])  # fmt: skip
    costs = cheap(graph, fp32=100.0, fp16=60.0)
    best = fastest_plan(graph, costs)
    assert best.is_exact
    assert best.us == min(
        plan_time(graph, uniform_plan(graph, FP16), costs).us, plan_time(graph, uniform_plan(graph, FP32), costs).us
    )
    assert best.width <= 6


def test_a_budget_that_no_plan_keeps_is_refused_with_the_least() -> None:
    graph = chain(node("a"), node("b"))
    costs = cheap(graph, fp32=100.0, fp16=60.0)
    indicator = {"a": {FP32: 1.0, FP16: 2.0}, "b": {FP32: 1.0, FP16: 2.0}}
    with pytest.raises(PlanError, match="sensitivity is 1; the least that a plan takes is 2"):
        fastest_plan_under(graph, costs, sensitivity=1.0, indicator=indicator)
    with pytest.raises(PlanError, match="give one budget"):
        fastest_plan_under(graph, costs)
    with pytest.raises(PlanError, match="memory_bytes needs memory"):
        fastest_plan_under(graph, costs, memory_bytes=1.0)
    with pytest.raises(PlanError, match="within_us is 1; the least that a plan takes is 120"):
        least_sensitive_plan(graph, costs, indicator, within_us=1.0)


def test_a_memory_budget_moves_the_operators_that_cost_least_time() -> None:
    graph = chain(node("a"), node("b", numel=10), node("c"))
    costs = FixedCosts(
        {("a", FP32): 10, ("a", FP16): 20, ("b", FP32): 10, ("b", FP16): 12, ("c", FP32): 10, ("c", FP16): 50},
        cast_us=0.0,
        element_us=0.0,
    )
    best = fastest_plan_under(
        graph, costs, memory_bytes=700, memory=lambda node, precision: node.saved_numel * precision.bytes
    )
    assert best.plan == {"a": FP16, "b": FP32, "c": FP32}
    assert (best.us, best.resource, best.is_exact) == (40.0, 640.0, True)


def test_greedy_gives_precision_back_where_it_matters_most_while_it_is_not_slower() -> None:
    graph = chain(node("a"), node("b"), node("c"))
    costs = FixedCosts({(label, each): 60.0 for label in "abc" for each in (FP32, FP16)}, cast_us=0.0, element_us=0.0)
    costs.us["b", FP32] = 80.0
    indicator = {"a": {FP16: 1.0}, "b": {FP16: 9.0}, "c": {FP16: 5.0}}
    greedy = greedy_plan(graph, costs, indicator)
    assert greedy.plan == {"a": FP32, "b": FP16, "c": FP32}
    assert greedy.steps == (("c", FP32), ("a", FP32))
    assert (greedy.tried, greedy.sensitivity, greedy.us) == (3, 9.0, 180.0)
    slower = greedy_plan(graph, costs, indicator, within_us=200.0)
    assert slower.steps[0] == ("b", FP32)
    assert slower.sensitivity == 0.0


def test_greedy_orders_by_what_a_step_takes_away() -> None:
    """The published code compares the lowest precision with the last entry of its list, which ranks b first here."""
    graph = chain(node("a", (FP32, FP16, INT8)), node("b", (FP32, FP16, INT8)))
    costs = cheap(graph, fp32=60.0, fp16=60.0, int8=60.0)
    costs.cast_us = costs.element_us = 0.0
    indicator = {"a": {INT8: 10.0, FP16: 1.0}, "b": {INT8: 11.0, FP16: 8.0}}
    greedy = greedy_plan(graph, costs, indicator)
    assert greedy.steps == (("a", FP16), ("b", FP16), ("b", FP32), ("a", FP32))


def test_greedy_keeps_to_memory_and_refuses_a_start_that_does_not() -> None:
    graph = chain(node("a"), node("b"))
    costs = cheap(graph, fp32=60.0, fp16=60.0)
    costs.cast_us = costs.element_us = 0.0
    indicator = {"a": {FP16: 1.0}, "b": {FP16: 2.0}}
    greedy = greedy_plan(
        graph, costs, indicator, memory_bytes=600, memory=lambda node, precision: node.saved_numel * precision.bytes
    )
    assert greedy.plan == {"a": FP16, "b": FP32}
    with pytest.raises(PlanError, match="needs more"):
        greedy_plan(graph, costs, indicator, memory_bytes=10, memory=lambda node, precision: 100.0)
    with pytest.raises(PlanError, match="the plan to start from takes 120"):
        greedy_plan(graph, costs, indicator, within_us=50.0)
