"""Time of a precision plan as a sum of terms of a few variables each, the objective of the searches.

A variable is the precision of an operator. A term is the cost of an operator, or of the casts around one tensor. An
operator that computes as its inputs are is a variable that a term ties to them. Terms of many operators, such as the
casts of a tensor that all layers read, are split into a chain of terms of three or four with helper variables between
them: what was cast so far, or the widest input so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision
from predictor.replay.precision.plan_time import Activation, Costs, activations, crossings, inputs_of, weight_casts
from predictor.replay.precision.rules import PrecisionRules, wider

Amount = tuple[float, float]  # what a term adds: the objective, and the resource that has a budget
Resource = Callable[[OperatorNode, Precision], float]
NOTHING: Amount = (0.0, 0.0)
DIRECT = 3  # consumers, or inputs, of which one term is not split


class Term(NamedTuple):
    """A part of the sum.

    Attributes:
        variables: it depends on.
        table: what it adds, by their values as positions in their domains; what it lacks is impossible.
    """

    variables: tuple[int, ...]
    table: Mapping[tuple[int, ...], Amount]


@dataclass(slots=True)
class PlanTerms:
    """A sum to minimise.

    Attributes:
        domains: values of each variable; the first variables are the precisions of the operators, in their order.
        places: the operator that each variable belongs to: itself, or the one before which a helper is decided.
        places: the operator that each variable belongs to.
        terms: of variables with more than one value.
        constant: everything else.
    """

    domains: list[tuple[Any, ...]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    constant: Amount = NOTHING

    def add(self, variables: Sequence[int], amount: Callable[..., Amount | None]) -> None:
        """Add a term: ``amount`` of the values of its variables, None where they cannot be together."""
        free = [variable for variable in variables if len(self.domains[variable]) > 1]
        table: dict[tuple[int, ...], Amount] = {}
        for positions in product(*(range(len(self.domains[variable])) for variable in variables)):
            values = (self.domains[variable][at] for variable, at in zip(variables, positions, strict=True))
            if (added := amount(*values)) is not None:
                at_free = zip(variables, positions, strict=True)
                table[tuple(at for variable, at in at_free if len(self.domains[variable]) > 1)] = added
        if not free:
            self.constant = _sum(self.constant, table[()])
        elif len(table) < prod(len(self.domains[variable]) for variable in free) or any(
            added != NOTHING for added in table.values()
        ):
            self.terms.append(Term(tuple(free), table))

    def helper(self, domain: Sequence[Any], place: int) -> int:
        """Return a new helper variable that belongs to an operator."""
        self.domains.append(tuple(domain))
        self.places.append(place)
        return len(self.domains) - 1


def plan_terms(
    graph: OperatorGraph, costs: Costs, rules: PrecisionRules, resource: Resource, resource_is_objective: bool = False
) -> PlanTerms:
    """Return the terms of a graph's plans.

    Args:
        graph: of operators.
        costs: of operators and casts; the objective.
        rules: of casts.
        resource: what an operator in a precision takes of the budget.
        resource_is_objective: minimise the resource, with the time as the budget.

    Raises:
        ConfigError: a cost is not known.
    """
    terms = PlanTerms()
    _add_domains(terms, graph, rules)

    def amount(us: float, taken: float) -> Amount:
        return (taken, us) if resource_is_objective else (us, taken)

    cast_us = cache(lambda cast_from, cast_to, numel: costs.cast(cast_from, cast_to, numel).us)
    for position, node in enumerate(graph.nodes):

        def own(precision: Precision, node: OperatorNode = node, position: int = position) -> Amount:
            us = costs.forward(node, precision).us + costs.backward(node, precision).us
            for cast in weight_casts(position, node, precision, rules):
                us += cast_us(cast.cast_from, cast.cast_to, cast.numel)
            return amount(us, resource(node, precision))

        terms.add([position], own)
    for position, (node, producers) in enumerate(zip(graph.nodes, inputs_of(graph), strict=True)):
        if not node.choices and producers:
            _add_widest(terms, position, producers, rules)
    for activation in activations(graph):
        _add_casts(terms, activation, rules, cast_us, amount)
    return terms


def _add_domains(terms: PlanTerms, graph: OperatorGraph, rules: PrecisionRules) -> None:
    for node, producers in zip(graph.nodes, inputs_of(graph), strict=True):
        if node.choices:
            terms.domains.append(node.choices)
        elif not producers:
            terms.domains.append((node.traced,))
        else:
            reachable = _outputs(terms, producers[0], rules)
            for producer in producers[1:]:
                reachable = _wider_of(reachable, _outputs(terms, producer, rules))
            terms.domains.append(reachable)
    terms.places = list(range(len(terms.domains)))


def _outputs(terms: PlanTerms, variable: int, rules: PrecisionRules) -> tuple[Precision, ...]:
    return tuple(dict.fromkeys(rules.output_of(precision) for precision in terms.domains[variable]))


def _wider_of(some: Sequence[Precision], others: Sequence[Precision]) -> tuple[Precision, ...]:
    return tuple(dict.fromkeys(wider(left, right) for left in some for right in others))


def _add_widest(terms: PlanTerms, position: int, producers: Sequence[int], rules: PrecisionRules) -> None:
    """Tie an operator that computes as its inputs are to them."""
    so_far, *others = producers
    is_helper = False

    def ties(first: Precision, *rest: Precision, after_helper: bool) -> Amount | None:
        *more, result = rest
        reached = first if after_helper else rules.output_of(first)
        for other in more:
            reached = wider(reached, rules.output_of(other))
        return NOTHING if reached is result else None

    while len(others) > DIRECT - 1:
        producer, *others = others
        known = terms.domains[so_far] if is_helper else _outputs(terms, so_far, rules)
        helper = terms.helper(_wider_of(known, _outputs(terms, producer, rules)), producer)
        after_helper = is_helper
        terms.add([so_far, producer, helper], lambda *values, after=after_helper: ties(*values, after_helper=after))
        so_far, is_helper = helper, True
    terms.add([so_far, *others, position], lambda *values: ties(*values, after_helper=is_helper))


def _add_casts(
    terms: PlanTerms,
    activation: Activation,
    rules: PrecisionRules,
    cast_us: Callable[[Precision, Precision, int], float],
    amount: Callable[[float, float], Amount],
) -> None:
    """Add the casts of an operator's output and of its gradient."""
    producer, consumers, numel = activation

    def casts(made: Precision, *readers: Precision) -> Amount:
        us, output, expected = 0.0, rules.output_of(made), rules.gradient_of(made)
        for read, gradient, _ in crossings(made, readers, rules):
            us += cast_us(output, read, numel) if read is not output else 0.0
            us += cast_us(gradient, expected, numel) if gradient is not expected else 0.0
        return amount(us, 0.0)

    if not rules.shares_casts:
        for consumer in consumers:
            terms.add([producer, consumer], casts)
    elif len(consumers) <= DIRECT:
        terms.add([producer, *consumers], casts)
    else:
        _add_shared_casts(terms, activation, rules, casts)


def _add_shared_casts(
    terms: PlanTerms, activation: Activation, rules: PrecisionRules, casts: Callable[..., Amount]
) -> None:
    """Add the casts of an output that many read, with helpers for the forms that it was cast to so far."""

    def form(precision: Precision) -> tuple[Precision, Precision]:
        return rules.input_of(precision), rules.gradient_of(precision)

    def next_cast(made: Precision, done: frozenset[Any], reader: Precision, then: frozenset[Any]) -> Amount | None:
        if done | {form(reader)} != then:
            return None
        return NOTHING if form(reader) in done else casts(made, reader)

    done = terms.helper([frozenset()], activation.producer)
    for consumer in activation.consumers:
        forms = dict.fromkeys(form(precision) for precision in terms.domains[consumer])
        reached = dict.fromkeys(before | {read} for before in terms.domains[done] for read in forms)
        then = terms.helper(tuple(reached), consumer)
        terms.add([activation.producer, done, consumer, then], next_cast)
        done = then


def _sum(left: Amount, right: Amount) -> Amount:
    return left[0] + right[0], left[1] + right[1]
