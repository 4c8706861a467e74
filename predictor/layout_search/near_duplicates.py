"""Near-duplicates: layouts of equal parallel sizes and micro-batch, as fast as each other, that differ in switches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from predictor.layout_search.candidate import Plan

# Steps nearer to each other than this are told apart by no run. Measurements of one kernel repeat within 1 % on GH200
# (regressors/Vista/card.md, noise).
NOISE = 0.01


class Ranked(NamedTuple):
    """One candidate that fits, with the replayed time of its step and the memory of its fullest GPU."""

    step_us: float
    memory_bytes: float
    plan: Plan


def alike(plan: Plan) -> tuple[object, ...]:
    """Return what near-duplicates have in common; ZeRO, recomputation, sequence parallelism and schedule may differ."""
    return plan.degrees, plan.micro_batch_size


def folded(ordered: Iterable[Ranked], top: int) -> tuple[list[Ranked], list[list[Ranked]]]:
    """Return the fastest candidates that are no near-duplicates of a faster one, and the near-duplicates of each.

    Args:
        ordered: candidates, the fastest first; it is read no further than the answer needs.
        top: how many to return.
    """
    leaders: list[Ranked] = []
    near_duplicates: list[list[Ranked]] = []
    latest: dict[tuple[object, ...], int] = {}
    for candidate in ordered:
        if len(leaders) == top and candidate.step_us > leaders[-1].step_us * (1.0 + NOISE):
            break
        place = latest.get(alike(candidate.plan))
        if place is not None and candidate.step_us <= leaders[place].step_us * (1.0 + NOISE):
            near_duplicates[place].append(candidate)
        elif len(leaders) < top:
            latest[alike(candidate.plan)] = len(leaders)
            leaders.append(candidate)
            near_duplicates.append([])
    return leaders, near_duplicates
