"""Dynamic programming over a linear arrangement of variables: the machinery under the exact searches.

Variables are decided one after the other. A state is the values of those that are decided and that a term with an
undecided one still needs: the frontier. Chains have a frontier of one operator, residual blocks of two, attention's
query, key and value of four; series-parallel graphs of n operators one that grows with log n (their pathwidth). Each
term is counted once, when its last variable is decided. Source: Bodlaender, "A partial k-arboretum of graphs with
bounded treewidth", 1998, on dynamic programming over path decompositions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from predictor.replay.precision.arrangement import arrangement
from predictor.replay.precision.plan_terms import Amount, PlanTerms, Term

MAX_STATES = 30_000


class Move(NamedTuple):
    """A decision: from a state of the layer before to a state of this one."""

    before: int
    value: int
    after: int
    objective: float
    resource: float


@dataclass(frozen=True, slots=True)
class Layer:
    """The decision of one variable."""

    variable: int
    num_states: int
    moves: Sequence[Move]


@dataclass(frozen=True, slots=True)
class Sweep:
    """All decisions in their order.

    Attributes:
        layers: one for each variable that has more than one value.
        constant: what no decision changes.
        width: largest number of variables in a frontier.
        dropped: no solution that leaves the kept states has an objective below it; inf where all states were kept.
    """

    layers: Sequence[Layer]
    constant: Amount
    width: int
    dropped: float = inf


def sweep(terms: PlanTerms, max_states: int = MAX_STATES) -> Sweep:
    """Return the states and decisions of a sum.

    Args:
        terms: of the sum.
        max_states: kept in one layer; beyond it only those that are reached with the least objective.
    """
    order, width = arrangement(terms)
    due = _due(terms, order)
    last_use = {
        variable: step for step, term_list in enumerate(due) for term in term_list for variable in term.variables
    }
    rest = _least_rest(due)
    states: dict[tuple[int, ...], int] = {(): 0}
    reached = [terms.constant[0]]
    live: list[int] = []
    layers: list[Layer] = []
    dropped = inf
    for step, variable in enumerate(order):
        scope = [*live, variable]
        place = {name: at for at, name in enumerate(scope)}
        lookups = [(tuple(place[name] for name in term.variables), term.table) for term in due[step]]
        live = [name for name in scope if last_use.get(name, -1) > step]
        kept = [place[name] for name in live]
        states, reached, moves = _decide(states, reached, len(terms.domains[variable]), lookups, kept)
        if len(states) > max_states:
            states, reached, moves, least = _narrow(states, reached, moves, max_states)
            dropped = min(dropped, least + rest[step + 1])
        layers.append(Layer(variable, len(states), moves))
    return Sweep(layers, terms.constant, width, dropped)


def _due(terms: PlanTerms, order: Sequence[int]) -> list[list[Term]]:
    """Return the terms that each decision completes."""
    step_of = {variable: step for step, variable in enumerate(order)}
    due: list[list[Term]] = [[] for _ in order]
    for term in terms.terms:
        due[max(step_of[variable] for variable in term.variables)].append(term)
    return due


def _least_rest(due: Sequence[Sequence[Term]]) -> list[float]:
    """Return, for each step, the least that its terms and all later ones can add to the objective."""
    rest = [0.0]
    for term_list in reversed(due):
        rest.append(rest[-1] + sum(min(amount[0] for amount in term.table.values()) for term in term_list))
    return rest[::-1]


def _decide(
    states: dict[tuple[int, ...], int],
    reached: Sequence[float],
    num_values: int,
    lookups: Sequence[tuple[tuple[int, ...], object]],
    kept: Sequence[int],
) -> tuple[dict[tuple[int, ...], int], list[float], list[Move]]:
    """Return the states after a decision, the least objective with which each is reached, and the moves."""
    after: dict[tuple[int, ...], int] = {}
    least: list[float] = []
    moves: list[Move] = []
    for state, before in states.items():
        for value in range(num_values):
            whole = (*state, value)
            objective = resource = 0.0
            for places, table in lookups:
                amount = table.get(tuple([whole[place] for place in places]))  # type: ignore[attr-defined]
                if amount is None:
                    break
                objective += amount[0]
                resource += amount[1]
            else:
                key = tuple([whole[place] for place in kept])
                to = after.setdefault(key, len(after))
                total = reached[before] + objective
                if to == len(least):
                    least.append(total)
                elif total < least[to]:
                    least[to] = total
                moves.append(Move(before, value, to, objective, resource))
    return after, least, moves


def _narrow(
    states: dict[tuple[int, ...], int], reached: Sequence[float], moves: Sequence[Move], max_states: int
) -> tuple[dict[tuple[int, ...], int], list[float], list[Move], float]:
    """Keep the states that are reached with the least objective; return also the least of the others."""
    ranked = sorted(range(len(reached)), key=reached.__getitem__)
    number = {state: at for at, state in enumerate(ranked[:max_states])}
    kept = {key: number[state] for key, state in states.items() if state in number}
    order = dict(sorted(kept.items(), key=lambda item: item[1]))
    moves = [move._replace(after=number[move.after]) for move in moves if move.after in number]
    return order, [reached[state] for state in ranked[:max_states]], moves, reached[ranked[max_states]]


class Completion(NamedTuple):
    """The best solution under a weight of the resource.

    Attributes:
        to_go: of every layer's states before its decision, the least weighted sum of what is left.
        objective: of the solution.
        resource: likewise.
        values: of every decided variable, as positions in their domains.
    """

    to_go: list[list[float]]
    objective: float
    resource: float
    values: dict[int, int]


def complete(sweep: Sweep, objective_weight: float = 1.0, resource_weight: float = 0.0) -> Completion | None:
    """Return the solution with the least weighted sum; None where the kept states lead to none."""
    to_go = [[0.0] * (sweep.layers[-1].num_states if sweep.layers else 1)]
    best: list[list[Move | None]] = []
    for number in range(len(sweep.layers) - 1, -1, -1):
        later = to_go[-1]
        num_before = sweep.layers[number - 1].num_states if number else 1
        least = [inf] * num_before
        chosen: list[Move | None] = [None] * num_before
        for move in sweep.layers[number].moves:
            before, _, after, objective, resource = move
            total = objective_weight * objective + resource_weight * resource + later[after]
            if total < least[before]:
                least[before] = total
                chosen[before] = move
        to_go.append(least)
        best.append(chosen)
    to_go.reverse()
    best.reverse()
    if to_go[0][0] == inf:
        return None
    objective, resource = sweep.constant
    values: dict[int, int] = {}
    state = 0
    for layer, chosen in zip(sweep.layers, best, strict=True):
        decision = chosen[state]
        assert decision is not None
        _, values[layer.variable], state, added, taken = decision
        objective, resource = objective + added, resource + taken
    return Completion(to_go, objective, resource, values)
