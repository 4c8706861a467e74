"""Time of many plans of one graph: the same sum as ``plan_time``, with every part computed once."""

from __future__ import annotations

from functools import cache

from predictor.replay.precision.operator_graph import OperatorGraph, Plan, Precision
from predictor.replay.precision.plan_time import (
    Costs,
    activations,
    check_plan,
    crossings,
    flow,
    inputs_of,
    weight_casts,
)
from predictor.replay.precision.rules import PrecisionRules


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
