"""The fastest places of tables: greedy places, local search from them, and branch and bound from the best."""

from __future__ import annotations

from collections.abc import Callable

from predictor.recommender.sharding.branch import branch_and_bound
from predictor.recommender.sharding.greedy import improve, starts
from predictor.recommender.sharding.problem import Place, ShardingProblem, Solution

# Scored places times ranks, of all starts together: a limit on work, so that the answer is that of every machine.
MOST_WORK = 6_000_000

Tell = Callable[[str], None]


def silent(text: str) -> None:
    """Say nothing."""


def local_optima(problem: ShardingProblem, tell: Tell = silent) -> list[tuple[Place, ...]]:
    """Return what local search makes of every greedy start, the fastest first; each start has an equal share of work.

    Args:
        problem: to be solved.
        tell: is told how far it is.
    """
    begun = list(dict.fromkeys(starts(problem)))
    places: dict[tuple[Place, ...], None] = {}
    for number, start in enumerate(begun, 1):
        tell(f"local search from start {number} of {len(begun)}")
        places[improve(problem, start, MOST_WORK / len(begun))] = None
    return sorted(places, key=problem.time_us)


def solve(problem: ShardingProblem, most_nodes: int | None = None) -> Solution | None:
    """Return the fastest places and a bound on the best; None where no plan is known to fit.

    Args:
        problem: to be solved.
        most_nodes: partial plans that branch and bound looks at; None: as many as its limit on work allows.
    """
    optima = local_optima(problem)
    return branch_and_bound(problem, optima[0] if optima else None, most_nodes)
