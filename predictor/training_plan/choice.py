"""Which plan is chosen, and which no other beats in both price and date."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from predictor.training_plan.plans import TrainingPlan


def front(plans: Sequence[TrainingPlan]) -> list[TrainingPlan]:
    """Return the plans that no other beats in both price and date, the earliest first; without prices GPU-hours count."""
    kept: list[TrainingPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.hours, cost(plan))):
        if not kept or cost(plan) < cost(kept[-1]):
            kept.append(plan)
    return kept


def cost(plan: TrainingPlan) -> float:
    """Return the likely price of a plan; its GPU-hours where prices are not known."""
    price = plan.likely_price
    return plan.hours * plan.case.num_gpus if price is None else price


def chosen(plans: Sequence[TrainingPlan], probability: float) -> TrainingPlan:
    """Return the cheapest plan that keeps deadline and budget with a probability; else the one that most likely does.

    Where none has a chance, it is the one that misses them by the least, in hours beyond its limit.
    """
    keeping = [plan for plan in plans if plan.probability >= probability]
    if keeping:
        return min(keeping, key=lambda plan: (cost(plan), plan.hours))
    return max(plans, key=lambda plan: (plan.probability, -excess(plan)))


def excess(plan: TrainingPlan) -> float:
    """Return a plan's likely hours over those by which deadline and budget are kept, as a ratio."""
    return plan.hours / plan.limit_hours if plan.limit_hours else inf
