"""Which plan is chosen, and which no other beats in both price and date."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from predictor.training_plan.plans import TrainingPlan

NEARLY = 0.03  # that few draws may err by


def front(plans: Sequence[TrainingPlan]) -> list[TrainingPlan]:
    """Return the plans that no other beats in both price and date, the earliest first.

    Without prices GPU-hours count.
    """
    kept: list[TrainingPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.hours, plan.cost)):
        if not kept or plan.cost < kept[-1].cost:
            kept.append(plan)
    return kept


def chosen(plans: Sequence[TrainingPlan], probability: float, draws: int, seed: int) -> TrainingPlan:
    """Return the cheapest plan that keeps deadline and budget with a probability; else the one that most likely does.

    Where none has a chance, it is the one that misses them by the least. Plans that may be it are drawn again, as often
    as was asked.

    Args:
        plans: one at least.
        probability: that is asked for.
        draws: of the wall time of plans that may be chosen.
        seed: of the draws.
    """
    for plan in sorted(plans, key=lambda plan: (plan.cost, plan.hours)):
        if plan.probability >= probability - NEARLY:
            surer = plan.drawn(draws, seed)
            if surer.probability >= probability:
                return surer
    return max(plans, key=lambda plan: (plan.probability, -excess(plan))).drawn(draws, seed)


def excess(plan: TrainingPlan) -> float:
    """Return a plan's likely hours over those by which deadline and budget are kept, as a ratio."""
    return plan.hours / plan.limit_hours if plan.limit_hours else inf
