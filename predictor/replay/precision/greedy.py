"""The greedy search for a plan, as published: start fast, then give precision back where it matters most.

Source: QSync, arXiv:2407.02327, the allocator; bytedance/QSync, ``qsync/Syncer/algos.py``. The gain of a step is what
it takes away: the operator's sensitivity now less that in the next higher precision. That code takes the gain of the
lowest one against the last entry of its list instead (``value_set[idx - 1]`` at index 0), and of any other against the
entry below, so that its order is another one. As there, an operator whose step is refused stays as it is for good, even
if a later step of a neighbour removes the casts that made it slow. ``least_sensitive_plan`` is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush

from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.replay.precision.plan_terms import Resource
from predictor.replay.precision.plan_time import (
    Costs,
    PlanError,
    activations,
    check_plan,
    crossings,
    flow,
    inputs_of,
    weight_casts,
)
from predictor.replay.precision.plans import Sensitivities, sensitivity_of
from predictor.replay.precision.rules import RULES, PrecisionRules


class PlanClock:
    """Times plans of one graph."""

    def __init__(self, graph: OperatorGraph, costs: Costs, rules: PrecisionRules) -> None:
        """Compute nothing yet."""
        self._graph = graph
        self._rules = rules
        self._activations = activations(graph)
        self._inputs = inputs_of(graph)

        @cache
        def cast_us(cast_from: Precision, cast_to: Precision, numel: int) -> float:
            return costs.cast(cast_from, cast_to, numel).us

        @cache
        def operator_us(position: int, precision: Precision) -> float:
            node = graph.nodes[position]
            us = costs.forward(node, precision).us + costs.backward(node, precision).us
            casts = weight_casts(position, node, precision, rules)
            return us + sum(cast_us(cast.cast_from, cast.cast_to, cast.numel) for cast in casts)

        @cache
        def casts_us(number: int, made: Precision, *readers: Precision) -> float:
            us, numel = 0.0, self._activations[number].numel
            output, expected = rules.output_of(made), rules.gradient_of(made)
            for read, gradient, _ in crossings(made, readers, rules):
                us += cast_us(output, read, numel) if read is not output else 0.0
                us += cast_us(gradient, expected, numel) if gradient is not expected else 0.0
            return us

        self._operator_us, self._casts_us = operator_us, casts_us

    def precisions(self, plan: Plan) -> list[Precision]:
        """Return the precision of every operator, as ``propagate`` does."""
        return flow(self._graph.nodes, self._inputs, plan, self._rules)

    def us(self, plan: Plan) -> float:
        """Return the time of a plan.

        Raises:
            PlanError: the graph cannot have the plan.
            ConfigError: a cost is not known.
        """
        check_plan(self._graph, plan)
        precisions = self.precisions(plan)
        us = sum(self._operator_us(position, precision) for position, precision in enumerate(precisions))
        for number, (producer, consumers, _) in enumerate(self._activations):
            us += self._casts_us(number, precisions[producer], *[precisions[consumer] for consumer in consumers])
        return us


ROUNDING = 1e-9  # relative: sums in another order are no slower plan


@dataclass(frozen=True, slots=True)
class GreedyPlan:
    """What the greedy search ends with.

    Attributes:
        plan: precision of every operator that has one to choose.
        us: its time.
        sensitivity: sum of the indicator over the operators.
        steps: operators in the order in which they were given precision back, with it.
        tried: number of steps that were tried.
    """

    plan: Mapping[str, Precision]
    us: float
    sensitivity: float
    steps: tuple[tuple[str, Precision], ...]
    tried: int


def greedy_plan(
    graph: OperatorGraph,
    costs: Costs,
    indicator: Sensitivities,
    start: Plan | None = None,
    within_us: float | None = None,
    memory_bytes: float | None = None,
    memory: Resource | None = None,
) -> GreedyPlan:
    """Return a plan that gives precision back, the largest gain first, while it is not slower and fits.

    Args:
        graph: of operators.
        costs: of operators in precisions and of casts.
        indicator: sensitivity by label and precision.
        start: plan to start from; None for the most sensitive, usually lowest, precision of every operator.
        within_us: time that must not be exceeded; None for that of the start.
        memory_bytes: budget of what ``memory`` counts; None for no limit.
        memory: bytes that an operator in a precision takes.

    Raises:
        PlanError: the start is slower than ``within_us`` or over the memory, or ``memory`` is missing.
        ConfigError: a cost is not known.
    """
    if memory_bytes is not None and memory is None:
        raise PlanError("memory_bytes needs memory, the bytes of an operator in a precision")
    sensitivity = sensitivity_of(indicator)
    clock = PlanClock(graph, costs, RULES)
    ladders = {node.label: _ladder(node, indicator) for node in graph.nodes if node.choices}
    plan = {label: ladder[0] for label, ladder in ladders.items()} | dict(start or {})
    limit = clock.us(plan) if within_us is None else within_us
    _check_start(clock.us(plan), limit)

    def fits(candidate: Plan) -> bool:
        if clock.us(candidate) > limit * (1.0 + ROUNDING):
            return False
        if memory_bytes is None or memory is None:
            return True
        precisions = clock.precisions(candidate)
        return sum(map(memory, graph.nodes, precisions)) <= memory_bytes

    if not fits(plan):
        raise PlanError(f"memory_bytes is {memory_bytes:.6g}; the plan to start from needs more")
    nodes = {node.label: node for node in graph.nodes}
    gains: list[tuple[float, int, str]] = []
    order = {label: position for position, label in enumerate(ladders)}

    def offer(label: str) -> None:
        ladder = ladders[label]
        at = ladder.index(plan[label])
        if at + 1 < len(ladder):
            node = nodes[label]
            heappush(gains, (sensitivity(node, ladder[at + 1]) - sensitivity(node, ladder[at]), order[label], label))

    for label in ladders:
        offer(label)
    steps: list[tuple[str, Precision]] = []
    tried = 0
    while gains:
        _, _, label = heappop(gains)
        higher = ladders[label][ladders[label].index(plan[label]) + 1]
        tried += 1
        if fits(plan | {label: higher}):
            plan[label] = higher
            steps.append((label, higher))
            offer(label)
    return GreedyPlan(
        plan, clock.us(plan), sum(sensitivity(nodes[label], plan[label]) for label in plan), tuple(steps), tried
    )


def _ladder(node: OperatorNode, indicator: Sensitivities) -> Sequence[Precision]:
    """Return an operator's precisions from the most to the least sensitive; of equals the narrow one first."""
    of = indicator.get(node.label, {})
    return sorted(node.choices, key=lambda precision: (-of.get(precision, 0.0), precision.bytes))


def _check_start(us: float, limit: float) -> None:
    if us > limit * (1.0 + ROUNDING):
        raise PlanError(f"within_us is {limit:.6g}; the plan to start from takes {us:.6g} µs")
