"""Greedy places of tables, and local search from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from predictor.recommender.sharding.problem import Floor, Place, ShardingProblem, Way
from predictor.recommender.workload.plan import Sharding

# A change must save more than rounding does.
LEAST_GAIN = 1e-12
MOST_ROUNDS = 400
MOST_SIZES = 6  # up to which tables are copied in some start

Chosen = Callable[[tuple[Way, ...]], list[Way]]


class Ranks:
    """What every rank holds, kept up to date while tables come and go."""

    def __init__(self, problem: ShardingProblem) -> None:
        """Begin with no table."""
        self.problem = problem
        self.busy = [0.0] * problem.num_ranks
        self.exchanged = [0.0] * problem.num_ranks
        self.memory = [0.0] * problem.num_ranks
        self.reduced = 0.0
        self.ranks_scored = 0  # ranks that scores looked at
        self._alone: dict[tuple[float, float], float] = {}

    def alone_us(self, rank: int) -> float:
        """Return the step's time if all ranks held what this one does; many hold the same."""
        load = self.busy[rank], self.exchanged[rank]
        us = self._alone.get(load)
        if us is None:
            us = self._alone[load] = self.problem.step_us(*load, 0.0)
        return us

    def add(self, place: Place, sign: float = 1.0) -> None:
        """Put a table in its place, or with ``sign`` -1 take it away."""
        load = place.way.load
        for rank in place.ranks:
            self.busy[rank] += sign * load.busy_us
            self.exchanged[rank] += sign * load.exchanged_bytes
            self.memory[rank] += sign * load.memory_bytes
        self.reduced += sign * place.way.reduced_bytes

    def score(self) -> tuple[float, float]:
        """Return the step's time, and how unevenly ranks are loaded, which tells plans of one time apart."""
        self.ranks_scored += self.problem.num_ranks
        alone = map(self.alone_us, range(self.problem.num_ranks))
        us = self.problem.step_us(max(self.busy), max(self.exchanged), max(self.reduced, 0.0))
        return us, sum(us * us for us in alone)

    def slowest(self) -> set[int]:
        """Return the ranks that are the busiest or exchange the most."""
        busiest, most = max(self.busy), max(self.exchanged)
        return {
            rank
            for rank in range(self.problem.num_ranks)
            if self.busy[rank] >= busiest - LEAST_GAIN or self.exchanged[rank] >= most - LEAST_GAIN
        }

    def place(self, way: Way) -> Place | None:
        """Return the place on the least loaded ranks that have room; None where too few have."""
        need = way.load.memory_bytes
        if way.choices:
            return self._choice(way)
        open_ranks = [
            rank for rank in range(self.problem.num_ranks) if self.memory[rank] + need <= self.problem.room_bytes
        ]
        if len(open_ranks) < way.parts:
            return None
        if len(open_ranks) > way.parts:
            open_ranks.sort(key=lambda rank: (self.alone_us(rank), self.memory[rank]))
        return Place(way, tuple(sorted(open_ranks[: way.parts])))

    def _choice(self, way: Way) -> Place | None:
        """Return the place on the set of ranks whose fullest has the least load."""
        most = self.problem.room_bytes - way.load.memory_bytes
        fitting = [ranks for ranks in way.choices if all(self.memory[rank] <= most for rank in ranks)]
        if not fitting:
            return None
        return Place(way, min(fitting, key=self._times_of))

    def _times_of(self, ranks: tuple[int, ...]) -> tuple[float, float]:
        loads = list(map(self.alone_us, ranks))
        return max(loads), sum(loads)


def _fastest(ranks: Ranks, ways: list[Way]) -> Place | None:
    """Return the place of a table that is the fastest for now."""
    best: tuple[tuple[float, float], Place] | None = None
    for way in ways:
        place = ranks.place(way)
        if place is None:
            continue
        ranks.add(place)
        score = ranks.score()
        ranks.add(place, -1.0)
        if best is None or score < best[0]:
            best = score, place
    return None if best is None else best[1]


def _construct(problem: ShardingProblem, chosen: Chosen) -> tuple[Place, ...] | None:
    """Place tables one by one, the heaviest first; None where some table finds no room."""
    ranks = Ranks(problem)
    order = sorted(range(len(problem.tables)), key=lambda table: -max(way.load for way in problem.ways[table])[0])
    order.sort(key=lambda table: -min(way.parts * way.load.memory_bytes for way in problem.ways[table]))
    places: dict[int, Place] = {}
    for table in order:
        place = _fastest(ranks, chosen(problem.ways[table])) or _fastest(ranks, list(problem.ways[table]))
        if place is None:
            return None
        ranks.add(place)
        places[table] = place
    return tuple(places[table] for table in range(len(problem.tables)))


def starts(problem: ShardingProblem) -> Iterator[tuple[Place, ...]]:
    """Yield places to search from.

    Any way; each sharding wherever a table has it; each floor's cheapest ways; and where there are nodes, small tables
    copied and the others spread over one each.
    """

    def only(sharding: Sharding) -> Chosen:
        return lambda ways: [way for way in ways if way.sharding is sharding] or list(ways)

    def cheapest(floor: Floor) -> Chosen:
        return lambda ways: [min(ways, key=lambda way: floor.share_us(way, problem.num_ranks))]

    def small_copied(size_bytes: float) -> Chosen:
        def chosen(ways: tuple[Way, ...]) -> list[Way]:
            copies = [way for way in ways if 0.0 < way.reduced_bytes <= size_bytes]
            return copies or [way for way in ways if way.choices] or list(ways)

        return chosen

    sizes = sorted({max(way.reduced_bytes for way in ways) for ways in problem.ways})
    has_nodes = any(way.choices for ways in problem.ways for way in ways)
    mixed = [small_copied(size) for size in sizes[:: max(1, len(sizes) // MOST_SIZES)]] if has_nodes else []
    for chosen in (list, *map(only, Sharding), *map(cheapest, problem.floors), *mixed):
        places = _construct(problem, chosen)
        if places is not None:
            yield places


def improve(problem: ShardingProblem, places: tuple[Place, ...], most_work: float = inf) -> tuple[Place, ...]:
    """Return places that no move of one table and no swap of two makes faster.

    Only tables of the slowest ranks, and copies on every rank, are moved: nothing else shortens the step.

    Args:
        problem: to be solved.
        places: to begin with.
        most_work: scored places times ranks, after which it stops; what it has by then is no slower than the start.
    """
    now = list(places)
    ranks = Ranks(problem)
    for place in now:
        ranks.add(place)
    for _ in range(MOST_ROUNDS):
        if ranks.ranks_scored >= most_work or not (
            _move(problem, ranks, now, most_work) or _swap(problem, ranks, now, most_work)
        ):
            break
    return tuple(now)


def _critical(ranks: Ranks, now: list[Place]) -> list[int]:
    slowest = ranks.slowest()
    return [
        table for table, place in enumerate(now) if place.way.reduced_bytes > 0.0 or not slowest.isdisjoint(place.ranks)
    ]


def _better(score: tuple[float, float], before: tuple[float, float]) -> bool:
    """Return whether a score is lower by more than rounding."""
    slack = LEAST_GAIN + 1e-9 * before[0]
    return score[0] < before[0] - slack or (score[0] <= before[0] + slack and score[1] < before[1] * (1.0 - 1e-9))


def _move(problem: ShardingProblem, ranks: Ranks, now: list[Place], most_work: float) -> bool:
    """Make the best move of one table; return whether there is one."""
    before = ranks.score()
    best: tuple[tuple[float, float], int, Place] | None = None
    for table in _critical(ranks, now):
        if ranks.ranks_scored >= most_work:
            break
        ranks.add(now[table], -1.0)
        place = _fastest(ranks, list(problem.ways[table]))
        if place is not None:
            ranks.add(place)
            score = ranks.score()
            ranks.add(place, -1.0)
            if best is None or score < best[0]:
                best = score, table, place
        ranks.add(now[table])
    if best is None or not _better(best[0], before):
        return False
    _, table, place = best
    ranks.add(now[table], -1.0)
    ranks.add(place)
    now[table] = place
    return True


def _may_lie(way: Way, ranks: tuple[int, ...]) -> bool:
    return not way.choices or ranks in way.choices


def _swap(problem: ShardingProblem, ranks: Ranks, now: list[Place], most_work: float) -> bool:
    """Swap the ranks of two tables that lie on as many; return whether that helped."""
    before = ranks.score()
    for first in _critical(ranks, now):
        if ranks.ranks_scored >= most_work:
            return False
        for second, other in enumerate(now):
            place = now[first]
            if len(other.ranks) != len(place.ranks) or other.ranks == place.ranks:
                continue
            if not (_may_lie(place.way, other.ranks) and _may_lie(other.way, place.ranks)):
                continue
            pair = Place(place.way, other.ranks), Place(other.way, place.ranks)
            for old in (place, other):
                ranks.add(old, -1.0)
            for new in pair:
                ranks.add(new)
            if max(ranks.memory) <= problem.room_bytes and _better(ranks.score(), before):
                now[first], now[second] = pair
                return True
            for new in pair:
                ranks.add(new, -1.0)
            for old in (place, other):
                ranks.add(old)
    return False
