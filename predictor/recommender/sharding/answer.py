"""The fastest sharding plans of a recommender's run, each with its whole prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from predictor.core.base.errors import ConfigError
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.memory import GIB, step_memory
from predictor.recommender.sharding.branch import branch_and_bound
from predictor.recommender.sharding.costs import sharding_problem
from predictor.recommender.sharding.greedy import starts
from predictor.recommender.sharding.problem import Place
from predictor.recommender.sharding.solve import Tell, local_optima, silent
from predictor.recommender.step import RecommenderPrediction, predict_recommender
from predictor.recommender.workload.memory import embedding_bytes, fullest
from predictor.recommender.workload.plan import Sharding, ShardingPlan, default_plan
from predictor.recommender.workload.run import RecommenderRun
from predictor.recommender.workload.traffic import all_traffic

HUGECTR = "HugeCTR's placement"
GIVEN = "the plan given"


@dataclass(frozen=True, slots=True)
class PlanWinner:
    """One plan with its prediction.

    Attributes:
        names: what is special about it; none for a plan of the search.
        memory_bytes: of the fullest GPU.
        fits: None where the GPU's memory is not known.
    """

    names: tuple[str, ...]
    prediction: RecommenderPrediction
    memory_bytes: float
    fits: bool | None

    @property
    def name(self) -> str:
        """Return the names in a line; empty for a plan of the search."""
        return ", ".join(self.names)

    @property
    def plan(self) -> ShardingPlan:
        """Return the plan."""
        return self.prediction.run.plan


@dataclass(frozen=True, slots=True)
class PlanSearch:
    """A search over plans.

    Attributes:
        winners: that fit, the fastest first; HugeCTR's placement, the run's own plan and those of one sharding for all
            tables among them. Plans that differ by the ranks' numbers alone are shown once.
        too_large: the same plans that do not fit.
        gap: share of the fastest plan's time that no plan saves, as the search counts times; 0 where it is proven best.
        memory_gib: of one GPU; None where not known.
    """

    run: RecommenderRun
    system: PublishedSystem
    winners: tuple[PlanWinner, ...]
    too_large: tuple[PlanWinner, ...]
    gap: float
    memory_gib: float | None


def named_plans(run: RecommenderRun) -> dict[ShardingPlan, tuple[str, ...]]:
    """Return HugeCTR's plan, the run's own, and those that shard all tables alike, each with its names."""
    ranks, tables = run.num_gpus, [sharded.table for sharded in run.plan.tables]
    placement = default_plan(run.model.embeddings, ranks)
    plans = {HUGECTR: placement}
    if run.plan != placement:
        plans[GIVEN] = run.plan
    shardings = [Sharding.ROW_WISE, Sharding.DATA_PARALLEL] if ranks > 1 else []
    if ranks > 1 and all(table.width % (4 * ranks) == 0 for table in tables):
        shardings.append(Sharding.COLUMN_WISE)
    every = tuple(range(ranks))
    for sharding in shardings:
        sharded = tuple(replace(entry, sharding=sharding, ranks=every) for entry in run.plan.tables)
        plans[f"all {sharding}"] = ShardingPlan(ranks, sharded)
    named: dict[ShardingPlan, tuple[str, ...]] = {}
    for name, plan in plans.items():
        named[plan] = (*named.get(plan, ()), name)
    return named


def _winner(
    names: tuple[str, ...], plan: ShardingPlan, run: RecommenderRun, system: PublishedSystem, limit: float | None
) -> PlanWinner:
    prediction = predict_recommender(replace(run, plan=plan), system)
    (memory,) = step_memory(prediction.tasks)
    return PlanWinner(names, prediction, memory.total, None if limit is None else memory.total <= limit)


Likeness = tuple[str, tuple[tuple[Sharding, int, int, int, tuple[float, ...]], ...]]


def _likeness(winner: PlanWinner) -> Likeness:
    """Return what plans have in common that differ by the ranks' numbers alone: time, and how tables are split."""
    tables = sorted(
        (sharded.sharding, len(sharded.ranks), sharded.table.rows, sharded.table.width, sharded.table.hotness)
        for sharded in winner.plan.tables
    )
    return f"{winner.prediction.step.us:.9g}", tuple(tables)


def _different(winners: list[PlanWinner]) -> list[PlanWinner]:
    """Return all that have a name, and of the others the first of those that are alike."""
    shown = {_likeness(winner) for winner in winners if winner.names}
    different = []
    for winner in winners:
        likeness = _likeness(winner)
        if winner.names or likeness not in shown:
            different.append(winner)
        shown.add(likeness)
    return different


def search_plans(
    run: RecommenderRun,
    system: PublishedSystem,
    memory_gib: float | None = None,
    top: int = 10,
    tell: Tell = silent,
) -> PlanSearch:
    """Search the sharding plans of a run.

    Args:
        run: its plan is one of those that are compared.
        system: that answers.
        memory_gib: of one GPU, instead of the system's.
        top: plans of the search to predict.
        tell: is told how far the search is.

    Raises:
        ConfigError: no plan is known to fit.
        PublishedError: the system lacks a regressor that the run needs.
    """
    if memory_gib is None and system.hardware.gpu.memory_gib is not None:
        memory_gib = system.hardware.gpu.memory_gib.value
    limit = None if memory_gib is None else memory_gib * GIB
    named = [_winner(names, plan, run, system, limit) for plan, names in named_plans(run).items()]
    room = inf if limit is None else limit - _bytes_without_tables(named[0])
    tell(f"times of {len(run.plan.tables):,} tables on {run.num_gpus:,} GPUs")
    problem = sharding_problem(run, system, room)
    optima = local_optima(problem, tell) if room > 0.0 else []
    tell("branch and bound from the fastest")
    solution = branch_and_bound(problem, optima[0] if optima else None) if room > 0.0 else None
    if solution is None:
        raise ConfigError(
            f"no sharding plan of {run.num_gpus} GPUs is known to fit in {memory_gib or 0.0:.1f} GiB; use more GPUs"
        )
    # A start may be predicted to be faster than what the search made of it by times that it adds up.
    begun = sorted(starts(problem), key=problem.time_us)
    places: list[tuple[Place, ...]] = list(dict.fromkeys([solution.places, *optima[:top], *begun[:top]]))
    tell(f"predictions of {len(places)} plans")
    known = {winner.plan: winner for winner in named}
    for plan in dict.fromkeys(map(problem.plan, places)):
        if plan not in known:
            known[plan] = _winner((), plan, run, system, limit)
    ranked = _different(sorted(known.values(), key=lambda winner: (winner.prediction.step.us, winner.memory_bytes)))
    fitting = _shown([winner for winner in ranked if winner.fits is not False], top)
    if not fitting:
        raise ConfigError(
            f"no sharding plan of {run.num_gpus} GPUs is known to fit in {memory_gib or 0.0:.1f} GiB; use more GPUs"
        )
    return PlanSearch(
        run=run,
        system=system,
        winners=fitting,
        too_large=tuple(winner for winner in ranked if winner.fits is False),
        gap=1.0 - solution.bound_us / solution.time_us,
        memory_gib=memory_gib,
    )


def _shown(winners: list[PlanWinner], top: int) -> tuple[PlanWinner, ...]:
    """Return the fastest searched plans, and all that have a name."""
    searched = [winner.plan for winner in winners if not winner.names][:top]
    return tuple(winner for winner in winners if winner.names or winner.plan in searched)


def _bytes_without_tables(winner: PlanWinner) -> float:
    """Return the bytes of a GPU that its tables do not take."""
    run = winner.prediction.run
    return winner.memory_bytes - embedding_bytes(run, fullest(run, all_traffic(run)))
