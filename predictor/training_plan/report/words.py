"""Amounts and plans as people read them."""

from __future__ import annotations

from math import inf, log10

from predictor.core.base.words import counted
from predictor.training_plan.plans import TrainingPlan


def amount(price: float | None) -> str:
    """Return a price to three digits, as its spread allows.

    >>> amount(331_234.0), amount(1234.0), amount(12.3)
    ('331,000', '1,230', '12.3')
    """
    if price is None or price == inf:
        return "no end"
    if price < 100.0:
        return f"{price:.3g}"
    digits = int(log10(price)) - 2
    return f"{round(price, -digits):,.0f}"


def percent(share: float) -> str:
    """Return a probability in whole percent; what is nearly certain or impossible is said to be so.

    >>> percent(0.874), percent(0.995), percent(0.0)
    ('87 %', 'over 99 %', 'under 1 %')
    """
    if share > 0.99:
        return "over 99 %"
    return "under 1 %" if share < 0.01 else f"{share:.0%}".replace("%", " %")


def named(plan: TrainingPlan) -> str:
    """Return a plan in words: GPUs, precision, batch."""
    space = plan.answer.space
    precision = f", {plan.case.precision}" if plan.case.precision is not None else ""
    spot = ", spot" if plan.purchase.is_spot else ""
    batch = f"{counted(space.global_batch_size, 'sample')} of {space.model.sequence_length:,} tokens a step"
    return f"{counted(plan.case.num_gpus, 'GPU')} of {plan.case.offer.name}{precision}{spot}, {batch}"
