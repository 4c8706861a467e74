"""Where one's own layout stands among all layouts of a search: how many that fit are faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from predictor.core.step.memory import GIB
from predictor.core.workload.run import TrainingRun
from predictor.layout_search.lines import cells
from predictor.layout_search.question import SearchProblem
from predictor.layout_search.rank import by_shared_floor, fitting
from predictor.layout_search.shared_parts import SharedParts
from predictor.layout_search.stages import ROUNDING


@dataclass(frozen=True, slots=True)
class LayoutRank:
    """A run beside the layouts of a search that fit.

    Attributes:
        faster: layouts that fit and take less time than the run.
        others: layouts that fit, the run's own left out.
        fastest_us: step of the fastest layout that fits; the run's own where that is faster.
    """

    step_us: float
    faster: int
    others: int
    fastest_us: float

    @property
    def rank(self) -> int:
        """Return the run's place among the layouts and itself, from 1."""
        return self.faster + 1

    def scaled(self, ratio: float) -> LayoutRank:
        """Return the same with the steps so many times as long: with what is not modelled of them."""
        return replace(self, step_us=self.step_us * ratio, fastest_us=self.fastest_us * ratio)

    @property
    def slower(self) -> float:
        """Return how much longer than the fastest it takes, as a share of that."""
        return self.step_us / self.fastest_us - 1.0


def layout_rank(problem: SearchProblem, run: TrainingRun, step_us: float, fastest_us: float) -> LayoutRank:
    """Return where a run stands. No layout is replayed whose bound says that it is slower.

    Args:
        problem: the search around the run.
        run: the run.
        step_us: its modelled step.
        fastest_us: modelled step of the search's first winner.
    """
    space = problem.space
    timer, footprints = SharedParts().of(space, problem.system)
    limit = inf if problem.memory_gib is None else problem.memory_gib * GIB
    below = step_us * (1.0 - ROUNDING)
    faster = others = 0
    for group in by_shared_floor(timer, fitting(list(cells(space)), footprints, limit, limit)[0]):
        others += len(group.candidates)
        if group.us > step_us:
            continue
        for plan in [candidate.plan for candidate in group.candidates]:
            floor_us = timer.floor_us(plan)
            if (
                floor_us <= step_us
                and plan.degrees.tensor == run.layout.tensor_parallel_size
                and space.run(plan) == run
            ):
                others -= 1
            elif floor_us < below and timer.bound_us(plan) < below and timer.step_us(plan) < below:
                faster += 1
    return LayoutRank(step_us, faster, others, min(fastest_us, step_us))
