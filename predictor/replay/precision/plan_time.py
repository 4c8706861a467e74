"""Time of a plan: every operator forward and backward in its precision, and every cast between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from predictor.core.base.errors import ConfigError, nearest
from predictor.core.costs.cost import ZERO, Cost
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Plan, Precision
from predictor.replay.precision.rules import RULES, PrecisionRules, widest


class PlanError(ConfigError):
    """A plan that a graph cannot have, or that no search can answer."""


class Costs(Protocol):
    """Costs of operators in precisions and of casts; a cost that is not known is refused by name."""

    def forward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of an operator's forward pass."""

    def backward(self, node: OperatorNode, precision: Precision) -> Cost:
        """Return the cost of its backward pass; ZERO where it has none."""

    def cast(self, cast_from: Precision, cast_to: Precision, numel: int) -> Cost:
        """Return the cost of casting a tensor."""


class Activation(NamedTuple):
    """An operator's output: who reads it."""

    producer: int
    consumers: tuple[int, ...]
    numel: int


class Cast(NamedTuple):
    """A cast that a plan needs.

    Attributes:
        producer: position of the operator whose output it is; of a weight, the operator itself.
        consumers: positions of the operators that read it in ``cast_to``, forward; whose gradient it is, backward.
        is_weight: of the operator's weights, from and to the master copies.
        number: of the weight.
    """

    producer: int
    consumers: tuple[int, ...]
    cast_from: Precision
    cast_to: Precision
    numel: int
    step_pass: Literal["forward", "backward"]
    is_weight: bool = False
    number: int = 0


class PlanTime(NamedTuple):
    """Time of a plan, by part."""

    forward: Cost
    backward: Cost
    casts: Cost

    @property
    def us(self) -> float:
        """Return the whole."""
        return self.forward.us + self.backward.us + self.casts.us


def activations(graph: OperatorGraph) -> list[Activation]:
    """Return the outputs of operators with all that read each of them.

    Raises:
        PlanError: a tensor's consumer does not come after its producer.
    """
    readers: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for producer, consumer, numel in graph.tensors:
        if not 0 <= producer < consumer < len(graph.nodes):
            raise PlanError(
                f"tensor from operator {producer} to {consumer}: producers come before consumers, and there are "
                f"operators 0 to {len(graph.nodes) - 1}"
            )
        if consumer not in readers[producer, numel]:
            readers[producer, numel].append(consumer)
    return [Activation(producer, tuple(consumers), numel) for (producer, numel), consumers in readers.items()]


def inputs_of(graph: OperatorGraph) -> list[list[int]]:
    """Return the producers of each operator's inputs."""
    producers: list[list[int]] = [[] for _ in graph.nodes]
    for producer, consumer, _ in graph.tensors:
        if producer not in producers[consumer]:
            producers[consumer].append(producer)
    return producers


def propagate(graph: OperatorGraph, plan: Plan, rules: PrecisionRules = RULES) -> list[Precision]:
    """Return the precision of every operator under a plan.

    What the plan does not name computes as traced, and an operator without a choice in the widest of its inputs.

    Raises:
        PlanError: the plan names an operator that is not there, or a precision that it cannot compute in.
    """
    check_plan(graph, plan)
    return flow(graph.nodes, inputs_of(graph), plan, rules)


def flow(
    nodes: Sequence[OperatorNode], inputs: Sequence[Sequence[int]], plan: Plan, rules: PrecisionRules
) -> list[Precision]:
    """Return what ``propagate`` does, of a plan that was checked and of producers that are known."""
    precisions: list[Precision] = []
    for node, producers in zip(nodes, inputs, strict=True):
        if node.choices:
            as_traced = node.traced if node.traced in node.choices else node.choices[0]
            precisions.append(plan.get(node.label, as_traced))
        elif producers:
            precisions.append(widest([rules.output_of(precisions[producer]) for producer in producers]))
        else:
            precisions.append(node.traced)
    return precisions


def check_plan(graph: OperatorGraph, plan: Plan) -> None:
    """Raise PlanError where a graph cannot have a plan; the message says what it can have."""
    nodes = {node.label: node for node in graph.nodes}
    for label, precision in plan.items():
        node = nodes.get(label)
        if node is None:
            raise PlanError(f"the plan names {label}, which is no operator of the graph.{nearest(label, nodes)}")
        if precision not in node.choices:
            rule = f"its choices are {', '.join(node.choices)}" if node.choices else "it computes as its inputs are"
            raise PlanError(f"the plan gives {label} {precision}; {rule}")


class Crossing(NamedTuple):
    """A form in which an output is read, other than the one that it is made in.

    Attributes:
        read: precision of the input.
        gradient: precision of the gradient that comes back.
        consumers: positions among the activation's consumers.
    """

    read: Precision
    gradient: Precision
    consumers: tuple[int, ...]


def crossings(producer: Precision, consumers: Sequence[Precision], rules: PrecisionRules = RULES) -> list[Crossing]:
    """Return the forms in which an output is read that need a cast forward or backward: one for each consumer.

    Where the rules share casts, consumers of one form have one cast forward, and one of their summed gradient backward.
    """
    made = rules.output_of(producer), rules.gradient_of(producer)
    forms = [(rules.input_of(precision), rules.gradient_of(precision)) for precision in consumers]
    if not rules.shares_casts:
        return [Crossing(*form, (position,)) for position, form in enumerate(forms) if form != made]
    shared: dict[tuple[Precision, Precision], list[int]] = {}
    for position, form in enumerate(forms):
        if form != made:
            shared.setdefault(form, []).append(position)
    return [Crossing(*form, tuple(positions)) for form, positions in shared.items()]


def casts_of(graph: OperatorGraph, precisions: Sequence[Precision], rules: PrecisionRules = RULES) -> list[Cast]:
    """Return the casts that operators in these precisions need, those of weights first."""
    casts = []
    for position, (node, precision) in enumerate(zip(graph.nodes, precisions, strict=True)):
        casts += weight_casts(position, node, precision, rules)
    for producer, consumers, numel in activations(graph):
        made, expected = rules.output_of(precisions[producer]), rules.gradient_of(precisions[producer])
        for crossing in crossings(precisions[producer], [precisions[consumer] for consumer in consumers], rules):
            readers = tuple(consumers[position] for position in crossing.consumers)
            if crossing.read is not made:
                casts.append(Cast(producer, readers, made, crossing.read, numel, "forward"))
            if crossing.gradient is not expected:
                casts.append(Cast(producer, readers, crossing.gradient, expected, numel, "backward"))
    return casts


def weight_casts(position: int, node: OperatorNode, precision: Precision, rules: PrecisionRules) -> list[Cast]:
    """Return the casts of an operator's weights from the master copies, and of their gradients back."""
    casts: list[Cast] = []
    own, master = (position,), rules.weights
    used, gradient = rules.input_of(precision), rules.gradient_of(precision)
    for number, numel in enumerate(node.weight_numels or ((node.weight_numel,) if node.weight_numel else ())):
        if used is not master:
            casts.append(Cast(position, own, master, used, numel, "forward", is_weight=True, number=number))
        if gradient is not master:
            casts.append(Cast(position, own, gradient, master, numel, "backward", is_weight=True, number=number))
    return casts


def plan_time(graph: OperatorGraph, plan: Plan, costs: Costs, rules: PrecisionRules = RULES) -> PlanTime:
    """Return the time of a plan: operators forward and backward, and casts.

    Raises:
        PlanError: the graph cannot have the plan.
        ConfigError: a cost is not known.
    """
    precisions = propagate(graph, plan, rules)
    forward = backward = casts = ZERO
    for node, precision in zip(graph.nodes, precisions, strict=True):
        forward += costs.forward(node, precision)
        backward += costs.backward(node, precision)
    for cast in casts_of(graph, precisions, rules):
        casts += costs.cast(cast.cast_from, cast.cast_to, cast.numel)
    return PlanTime(forward, backward, casts)


def uniform_plan(graph: OperatorGraph, precision: Precision) -> dict[str, Precision]:
    """Return the plan in which every operator that can computes in one precision; the others as traced."""
    return {node.label: precision for node in graph.nodes if precision in node.choices}
