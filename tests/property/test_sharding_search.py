"""The search over shardings against every plan there is, on small random problems."""

from __future__ import annotations

from itertools import combinations, product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.recommender.sharding.branch import branch_and_bound
from predictor.recommender.sharding.greedy import improve, starts
from predictor.recommender.sharding.problem import Floor, Load, Place, ShardingProblem, Way
from predictor.recommender.sharding.solve import solve
from predictor.recommender.workload.embedding import Table
from predictor.recommender.workload.plan import Sharding

AMOUNTS = st.integers(0, 20).map(float)


def step_us(busy: float, exchanged: float, reduced: float) -> float:
    """A step: lookups, then an exchange that may hide behind 5 µs of other work, then a reduction with a latency."""
    return 3.0 + busy + max(0.0, 0.5 * exchanged - 5.0) + (1.0 + 0.25 * reduced if reduced else 0.0)


FLOORS = (Floor(-2.0, 1.0, 0.5, 0.25), Floor(3.0, 1.0, 0.0, 0.25))


@st.composite
def problems(draw: st.DrawFn) -> ShardingProblem:
    num_ranks, num_tables = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    tables, ways = [], []
    for number in range(num_tables):
        tables.append(Table(f"t{number}", "layer", (number,), 10, 8, (1.0,)))
        options = [Way(Sharding.TABLE_WISE, 1, Load(draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)))]
        if num_ranks > 1:
            options.append(Way(Sharding.ROW_WISE, num_ranks, Load(draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS))))
            options.append(Way(Sharding.COLUMN_WISE, 2, Load(draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS))))
            reduced = draw(AMOUNTS)
            options.append(Way(Sharding.DATA_PARALLEL, num_ranks, Load(draw(AMOUNTS), 0.0, draw(AMOUNTS)), reduced))
        ways.append(tuple(options))
    room = draw(st.one_of(st.just(inf), st.integers(10, 60).map(float)))
    floors = draw(st.sampled_from([(), FLOORS]))
    return ShardingProblem(num_ranks, tuple(tables), tuple(ways), room, step_us, floors)


def every_plan(problem: ShardingProblem) -> list[tuple[Place, ...]]:
    options = [
        [Place(way, ranks) for way in ways for ranks in combinations(range(problem.num_ranks), way.parts)]
        for ways in problem.ways
    ]
    return [places for places in product(*options) if problem.fits(places)]


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_search_finds_what_brute_force_finds(problem: ShardingProblem) -> None:
    plans = every_plan(problem)
    solution = solve(problem)
    if not plans:
        assert solution is None
        return
    best_us = min(map(problem.time_us, plans))
    assert solution is not None
    assert problem.fits(solution.places)
    assert solution.time_us == pytest.approx(best_us, rel=1e-8)
    assert problem.time_us(solution.places) == pytest.approx(solution.time_us, rel=1e-12)
    assert solution.bound_us == solution.time_us


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(0, 3))
def test_a_search_that_stops_early_still_knows_a_bound(problem: ShardingProblem, most_nodes: int) -> None:
    plans = every_plan(problem)
    solution = branch_and_bound(problem, next(starts(problem), None), most_nodes)
    if solution is None:
        return
    best_us = min(map(problem.time_us, plans))
    assert solution.bound_us <= best_us * (1.0 + 1e-9) <= solution.time_us * (1.0 + 2e-9)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_local_search_keeps_what_fits_and_is_never_slower(problem: ShardingProblem) -> None:
    for places in starts(problem):
        better = improve(problem, places)
        assert problem.fits(places)
        assert problem.fits(better)
        assert problem.time_us(better) <= problem.time_us(places) * (1.0 + 1e-6)
        problem.plan(better)


@st.composite
def problems_of_nodes(draw: st.DrawFn) -> ShardingProblem:
    tables, ways = [], []
    for number in range(draw(st.integers(1, 3))):
        tables.append(Table(f"t{number}", "layer", (number,), 10, 8, (1.0,)))
        one, node, copy = (Load(draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)) for _ in range(3))
        ways.append(
            (
                Way(Sharding.TABLE_WISE, 1, one),
                Way(Sharding.TABLE_ROW_WISE, 2, node, choices=((0, 1), (2, 3))),
                Way(Sharding.DATA_PARALLEL, 4, copy._replace(exchanged_bytes=0.0), draw(AMOUNTS)),
            )
        )
    return ShardingProblem(4, tuple(tables), tuple(ways), inf, step_us, draw(st.sampled_from([(), FLOORS])))


@settings(max_examples=100, deadline=None)
@given(problems_of_nodes())
def test_rows_over_a_node_stay_on_one_and_the_bound_holds(problem: ShardingProblem) -> None:
    options = [
        [
            Place(way, ranks)
            for way in ways
            for ranks in (way.choices or list(combinations(range(problem.num_ranks), way.parts)))
        ]
        for ways in problem.ways
    ]
    best_us = min(map(problem.time_us, product(*options)))
    solution = solve(problem)
    assert solution is not None
    assert solution.bound_us <= best_us * (1.0 + 1e-9) <= solution.time_us * (1.0 + 2e-9)
    assert solution.time_us <= 1.5 * best_us
    assert all(not place.way.choices or place.ranks in place.way.choices for place in solution.places)
