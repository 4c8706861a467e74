"""The fastest places of tables: greedy places, local search from them, and branch and bound from the best."""

from __future__ import annotations

from predictor.search.sharding.branch import branch_and_bound
from predictor.search.sharding.greedy import improve, starts
from predictor.search.sharding.problem import Place, ShardingProblem, Solution


def local_optima(problem: ShardingProblem) -> list[tuple[Place, ...]]:
    """Return what local search makes of every greedy start, the fastest first."""
    places = {improve(problem, start) for start in starts(problem)}
    return sorted(places, key=problem.time_us)


def solve(problem: ShardingProblem, most_nodes: int | None = None) -> Solution | None:
    """Return the fastest places and a bound on the best; None where no plan is known to fit.

    Args:
        problem: to be solved.
        most_nodes: partial plans that branch and bound looks at; None: as many as a second or two allows.
    """
    optima = local_optima(problem)
    return branch_and_bound(problem, optima[0] if optima else None, most_nodes)
