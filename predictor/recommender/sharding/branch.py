"""Branch and bound over the places of tables: exact on small problems, a bound on large ones.

Ranks that hold the same so far are interchangeable, so of each kind only the number that takes a part is enumerated.
Where some ways may lie on some sets of ranks alone, ranks are not, and the bound is that of the empty plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from predictor.recommender.sharding.problem import Place, ShardingProblem, Solution, Way

# Partial plans times ranks: a limit on work, so that places and bound are those of every machine.
MOST_WORK = 250_000
ROUNDING = 1e-9

State = tuple[float, float, float]  # busy, exchanged, memory of one rank


class _Rest:
    """What the tables that are not placed yet add at least, whatever their ways."""

    def __init__(self, problem: ShardingProblem, order: list[int]) -> None:
        zero = (0.0, 0.0, 0.0)
        self.totals = [zero]  # over all ranks: busy, exchanged, memory
        self.largest = [(0.0, 0.0)]  # of a single part
        self.reduced = [0.0]
        self.floors = [tuple(floor.base_us for floor in problem.floors)]  # of what is below, in the floors' order
        for table in reversed(order):
            ways = problem.ways[table]
            before, parts = self.totals[-1], self.largest[-1]
            self.totals.append(
                (
                    before[0] + min(way.parts * way.load.busy_us for way in ways),
                    before[1] + min(way.parts * way.load.exchanged_bytes for way in ways),
                    before[2] + min(way.parts * way.load.memory_bytes for way in ways),
                )
            )
            self.largest.append(
                (
                    max(parts[0], min(way.load.busy_us for way in ways)),
                    max(parts[1], min(way.load.exchanged_bytes for way in ways)),
                )
            )
            self.reduced.append(self.reduced[-1] + min(way.reduced_bytes for way in ways))
            self.floors.append(
                tuple(
                    us + min(floor.share_us(way, problem.num_ranks) for way in ways)
                    for us, floor in zip(self.floors[-1], problem.floors, strict=True)
                )
            )
        for rows in (self.totals, self.largest, self.reduced, self.floors):
            rows.reverse()


class _Search:
    def __init__(self, problem: ShardingProblem, known: tuple[Place, ...] | None, most_nodes: int) -> None:
        self.problem = problem
        weight = [max(way.parts * way.load.busy_us for way in ways) for ways in problem.ways]
        self.order = sorted(range(len(problem.tables)), key=lambda table: -weight[table])
        self.rest = _Rest(problem, self.order)
        self.best = known
        self.best_us = inf if known is None else problem.time_us(known)
        self.nodes_left = most_nodes
        self.open_us = inf
        self.path: list[Place] = []

    def bound(self, depth: int, ranks: list[State], reduced: float) -> float:
        """Return a time that no completion of these places beats; infinite where none fits."""
        problem, count = self.problem, self.problem.num_ranks
        busy, exchanged, memory = self.rest.totals[depth]
        if sum(rank[2] for rank in ranks) + memory > problem.room_bytes * count * (1.0 + ROUNDING):
            return inf
        part_us, part_bytes = self.rest.largest[depth]
        total_us, total_bytes = sum(rank[0] for rank in ranks), sum(rank[1] for rank in ranks)
        busiest, most = max(rank[0] for rank in ranks), max(rank[1] for rank in ranks)
        apart = problem.step_us(
            max(busiest, (total_us + busy) / count, part_us),
            max(most, (total_bytes + exchanged) / count, part_bytes),
            reduced + self.rest.reduced[depth],
        )
        together = (
            rest_us
            + floor.per_busy_us * total_us / count
            + floor.us_per_exchanged_byte * total_bytes / count
            + floor.us_per_reduced_byte * reduced
            for floor, rest_us in zip(problem.floors, self.rest.floors[depth], strict=True)
        )
        return max((apart, *together))

    def descend(self, depth: int, ranks: list[State], reduced: float) -> None:
        bound = self.bound(depth, ranks, reduced)
        if bound >= self.best_us * (1.0 - ROUNDING):
            return
        if depth == len(self.order):
            self.best = self._in_tables_order()
            self.best_us = self.problem.time_us(self.best)
            return
        for place, after in self._children(depth, ranks, reduced):
            self.path.append(place)
            self.descend(depth + 1, after, reduced + place.way.reduced_bytes)
            self.path.pop()

    def _children(self, depth: int, ranks: list[State], reduced: float) -> list[tuple[Place, list[State]]]:
        """Return the places of the next table with what ranks then hold, the most promising first.

        Where the search may look at no more, what is left out counts as open.
        """
        children: list[tuple[float, Place, list[State]]] = []
        for way in self.problem.ways[self.order[depth]]:
            for chosen in rank_sets(ranks, way, self.problem.room_bytes):
                if self.nodes_left <= 0:
                    self.open_us = min(self.open_us, self.bound(depth, ranks, reduced))
                    break
                self.nodes_left -= 1
                after, load = list(ranks), way.load
                for rank in chosen:
                    busy, exchanged, memory = ranks[rank]
                    after[rank] = (busy + load.busy_us, exchanged + load.exchanged_bytes, memory + load.memory_bytes)
                key = self.bound(depth + 1, after, reduced + way.reduced_bytes)
                children.append((key, Place(way, chosen), after))
        children.sort(key=lambda child: child[0])
        return [(place, after) for _, place, after in children]

    def _in_tables_order(self) -> tuple[Place, ...]:
        places = dict(zip(self.order, self.path, strict=True))
        return tuple(places[table] for table in range(len(self.order)))


def rank_sets(ranks: list[State], way: Way, room_bytes: float) -> Iterator[tuple[int, ...]]:
    """Yield sets of ranks for the parts of a way that differ in what their ranks hold so far."""
    if way.choices:
        alike = {tuple(sorted(ranks[rank] for rank in chosen)): chosen for chosen in reversed(way.choices)}
        for chosen in alike.values():
            if all(ranks[rank][2] + way.load.memory_bytes <= room_bytes for rank in chosen):
                yield chosen
        return
    kinds: dict[State, list[int]] = {}
    for rank, state in enumerate(ranks):
        if state[2] + way.load.memory_bytes <= room_bytes:
            kinds.setdefault(state, []).append(rank)

    def choose(groups: list[list[int]], parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 0:
            yield ()
            return
        if not groups or sum(map(len, groups)) < parts:
            return
        for count in range(min(parts, len(groups[0])), -1, -1):
            for others in choose(groups[1:], parts - count):
                yield (*groups[0][:count], *others)

    for chosen in choose(list(kinds.values()), way.parts):
        yield tuple(sorted(chosen))


def branch_and_bound(
    problem: ShardingProblem, known: tuple[Place, ...] | None = None, most_nodes: int | None = None
) -> Solution | None:
    """Return the fastest places, or after ``most_nodes`` the fastest so far; None where nothing fits.

    Args:
        problem: to be solved.
        known: places that fit, to be beaten.
        most_nodes: partial plans to look at; None: as many as ``MOST_WORK`` allows.
    """
    search = _Search(problem, known, MOST_WORK // problem.num_ranks if most_nodes is None else most_nodes)
    empty = [(0.0, 0.0, 0.0)] * problem.num_ranks
    search.descend(0, empty, 0.0)
    if search.best is None:
        return None
    if any(way.choices for ways in problem.ways for way in ways):
        return Solution(search.best, search.best_us, min(search.best_us, search.bound(0, empty, 0.0)))
    return Solution(search.best, search.best_us, min(search.best_us, search.open_us))
