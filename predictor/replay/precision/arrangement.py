"""Elimination order of a sweep over the variables of a sum, chosen for a small frontier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

from predictor.replay.precision.plan_terms import PlanTerms

Neighbours = Mapping[int, set[int]]


def arrangement(terms: PlanTerms) -> tuple[list[int], int]:
    """Return an order of the variables with a small frontier, and the number of variables in its largest one.

    The best of three: the order of the operators, which suits steps as they ran; and the neighbour of the frontier that
    leaves the fewest states, with ties to the earliest operator or to the oldest variable of the frontier, which suits
    many inputs that meet in one operator. Source of the greedy orders: King, "An automatic reordering scheme for
    simultaneous equations derived from network systems", 1970.
    """
    neighbours: dict[int, set[int]] = {at: set() for at, domain in enumerate(terms.domains) if len(domain) > 1}
    for term in terms.terms:
        for variable in term.variables:
            neighbours[variable].update(term.variables)
    for variable, others in neighbours.items():
        others.discard(variable)
    sizes = {variable: log(len(terms.domains[variable])) for variable in neighbours}
    # A helper is decided right after its operator, so that it replaces what it sums up.
    in_place = sorted(neighbours, key=lambda variable: (terms.places[variable], variable))
    rank = {variable: at for at, variable in enumerate(in_place)}
    orders = [in_place, *(_greedy(neighbours, sizes, in_place, rank, is_old) for is_old in (False, True))]
    return min(((order, *_extent(order, neighbours, sizes)) for order in orders), key=lambda entry: entry[2])[:2]


def _extent(order: Sequence[int], neighbours: Neighbours, sizes: Mapping[int, float]) -> tuple[int, float]:
    """Return the variables in the largest frontier, and the logarithm of its states."""
    position = {variable: at for at, variable in enumerate(order)}
    leaves: dict[int, list[int]] = {}
    for variable in order:
        last = max((position[other] for other in neighbours[variable]), default=-1)
        leaves.setdefault(max(last, position[variable]), []).append(variable)
    width = live = 0
    states = most = 0.0
    for at, variable in enumerate(order):
        live += 1
        states += sizes[variable]
        width, most = max(width, live), max(most, states)
        for leaving in leaves.get(at, ()):
            live -= 1
            states -= sizes[leaving]
    return width, most


def _greedy(
    neighbours: Neighbours, sizes: Mapping[int, float], first: Iterable[int], rank: Mapping[int, int], is_old: bool
) -> list[int]:
    """Return the order that always takes the neighbour of the frontier that leaves the fewest states."""
    pending = {variable: len(others) for variable, others in neighbours.items()}
    decided: dict[int, int] = {}
    candidates: set[int] = set()

    def growth(variable: int) -> float:
        grown = sizes[variable] if any(other not in decided for other in neighbours[variable]) else 0.0
        return grown - sum(sizes[other] for other in neighbours[variable] if other in decided and pending[other] == 1)

    def age(variable: int) -> int:
        return min((decided[other] for other in neighbours[variable] if other in decided), default=0) if is_old else 0

    key: Callable[[int], tuple[float, int, int]] = lambda at: (round(growth(at), 9), age(at), rank[at])  # noqa: E731
    for start in first:
        if start in decided:
            continue
        candidates.add(start)
        while candidates:
            variable = min(candidates, key=key)
            candidates.discard(variable)
            decided[variable] = len(decided)
            for other in neighbours[variable]:
                pending[other] -= 1
                if other not in decided:
                    candidates.add(other)
    return list(decided)
