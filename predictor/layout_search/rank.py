"""Branch and bound over layouts: floors, then bounds, then replays of those that may still be the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from predictor.core.base.collector import paused_collector
from predictor.core.base.errors import NoLayoutError
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MEMORY_ERROR
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.near_duplicates import Ranked, folded
from predictor.layout_search.space import Plan, Space
from predictor.layout_search.stages import ROUNDING, Pipelines
from predictor.layout_search.timer import Timer

# The Pareto front ends at this many times the fastest layout's time.
WORTHWHILE = 3.0
FLOOR, BOUND, REPLAY = range(3)
# Faster layouts to name beside the best, of those that may not fit.
MOST_UNSURE = 3


class _Fitting(NamedTuple):
    """A candidate that fits, with a time that its step cannot be shorter than."""

    floor_us: float
    memory_bytes: float
    plan: Plan


class _Open(NamedTuple):
    """A candidate in the queue: a time that its step cannot be shorter than, and how it is known.

    Attributes:
        us: the floor, the bound or, at last, the replay.
        known_by: FLOOR, BOUND or REPLAY; of equal times the vaguest comes first.
        memory_bytes: of equal replays the leanest comes first.
        number: of the candidate; keeps the queue from comparing plans.
    """

    us: float
    known_by: int
    memory_bytes: float
    number: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Result of a search.

    Attributes:
        best: the fastest candidates that fit for certain, the fastest first; those that may fit where none is certain.
        near_duplicates: those of each of them; none where they are candidates of their own.
        pareto: those that no other beats in both time and memory, up to WORTHWHILE times the fastest one's time, the
            leanest first; empty unless asked for.
        considered: candidates of the space.
        fitting: those whose predicted peak is not above the memory; where there are none, those that may fit.
        bounded: those whose floor asked for a bound, on the way to the fastest.
        replayed: those whose bound asked for a replay.
        unsure: those that may not fit and are faster than the best of those that fit for certain, the fastest first.
    """

    best: list[Ranked]
    near_duplicates: list[list[Ranked]]
    pareto: list[Ranked]
    considered: int
    fitting: int
    bounded: int
    replayed: int
    unsure: list[Ranked]


def plans(space: Space) -> Iterator[Plan]:
    """Return every candidate of a space."""
    orders: dict[tuple[int, int], list[tuple[str, int]]] = {}
    recomputes = space.recomputes()
    for degrees in space.degrees():
        zeros = space.zeros(degrees)
        parallels = space.sequence_parallels(degrees)
        for size, count in space.batches(degrees):
            key = degrees.pipeline, count
            if key not in orders:
                orders[key] = space.orders(degrees, count)
            for parallel in parallels:
                for recompute, modules in recomputes:
                    for schedule, num_chunks in orders[key]:
                        for zero in zeros:
                            yield Plan(degrees, zero, parallel, size, count, recompute, schedule, num_chunks, modules)


@dataclass(slots=True)
class Effort:
    """How many candidates were bounded and replayed on the way."""

    bounded: int = 0
    replayed: int = 0


def in_order(timer: Timer, fitting: list[_Fitting], effort: Effort) -> Iterator[Ranked]:
    """Return candidates, the fastest first, looking no further than asked.

    Branch and bound: the candidate with the least known time is bounded, then replayed; a replayed candidate with the
    least known time is the next of the ranking.
    """
    queue = [_Open(candidate.floor_us, FLOOR, candidate.memory_bytes, i) for i, candidate in enumerate(fitting)]
    heapify(queue)
    while queue:
        us, known_by, memory, number = heappop(queue)
        plan = fitting[number].plan
        if known_by == REPLAY:
            yield Ranked(us, memory, plan)
        elif known_by == BOUND:
            effort.replayed += 1
            heappush(queue, _Open(timer.step_us(plan), REPLAY, memory, number))
        else:
            effort.bounded += 1
            heappush(queue, _Open(timer.bound_us(plan) * (1.0 - ROUNDING), BOUND, memory, number))


def pareto_front(timer: Timer, fitting: list[_Fitting], slowest_us: float) -> list[Ranked]:
    """Return the candidates up to a time that no other beats in both step time and memory, the leanest first."""
    front: list[Ranked] = []
    limit = slowest_us
    for candidate in sorted(fitting, key=lambda candidate: (candidate.memory_bytes, candidate.floor_us)):
        if candidate.floor_us > limit or timer.bound_us(candidate.plan) * (1.0 - ROUNDING) > limit:
            continue
        step_us = timer.step_us(candidate.plan)
        if step_us > slowest_us or (front and step_us >= front[-1].step_us):
            continue
        if front and front[-1].memory_bytes == candidate.memory_bytes:
            front.pop()
        front.append(Ranked(step_us, candidate.memory_bytes, candidate.plan))
        limit = step_us
    return front


class _Candidates(NamedTuple):
    """The candidates of a space by how surely they fit.

    Attributes:
        considered: all of them.
        sure: that fit for certain.
        tight: that are not above the memory.
        near: that are above it, and may fit all the same.
    """

    considered: int
    sure: list[_Fitting]
    tight: list[_Fitting]
    near: list[_Fitting]


def _candidates(space: Space, timer: Timer, footprints: Footprints, memory_gib: float | None) -> _Candidates:
    """Return a space's candidates by how surely they fit.

    Not looked at further is what does not fit by its states alone, or with smaller micro-batches already: candidates
    that differ in them come in their order, and hold as many samples in flight, or more.
    """
    limit = inf if memory_gib is None else memory_gib * GIB
    certain, beyond = limit * (1.0 - MEMORY_ERROR), limit * (1.0 + MEMORY_ERROR)
    sure: list[_Fitting] = []
    tight: list[_Fitting] = []
    near: list[_Fitting] = []
    too_large: set[tuple[object, ...]] = set()
    considered = 0
    for plan in plans(space):
        considered += 1
        if footprints.least_bytes(plan) > beyond:
            continue
        but_batch = plan[:3] + plan[5:]
        if but_batch in too_large:
            continue
        memory = footprints.memory_bytes(plan)
        if memory > beyond:
            too_large.add(but_batch)
        else:
            where = sure if memory <= certain else tight if memory <= limit else near
            where.append(_Fitting(timer.floor_us(plan), memory, plan))
    return _Candidates(considered, sure, tight, near)


@paused_collector()
def rank(
    space: Space, system: PublishedSystem, memory_gib: float | None, top: int, pareto: bool = False, fold: bool = False
) -> Ranking:
    """Rank every candidate of a space.

    Args:
        space: the candidates.
        system: times it.
        memory_gib: memory of one GPU; None: unlimited.
        top: how many to return.
        pareto: look for the Pareto front as well.
        fold: near-duplicates of a faster candidate are counted with it.

    Raises:
        NoLayoutError: there is no candidate, or none may fit; the message says by how much.
    """
    pipelines = Pipelines(space)
    timer, footprints = Timer(space, system, pipelines), Footprints(space, pipelines)
    considered, sure, tight, near = _candidates(space, timer, footprints, memory_gib)
    fitting = [*sure, *tight] or near
    if not fitting:
        raise _without_layouts(space, footprints, memory_gib)
    effort = Effort()
    ordered = in_order(timer, sure or fitting, effort)
    best, near_duplicates = folded(ordered, top) if fold else (list(islice(ordered, top)), [])
    front = pareto_front(timer, fitting, WORTHWHILE * best[0].step_us) if pareto else []
    unsure = _faster(timer, tight, best[0].step_us, effort) if sure else []
    return Ranking(best, near_duplicates, front, considered, len(fitting), effort.bounded, effort.replayed, unsure)


def _without_layouts(space: Space, footprints: Footprints, memory_gib: float | None) -> NoLayoutError:
    """Return why a search has no answer: nothing divides, or what the leanest candidate needs."""
    needs = [(footprints.memory_bytes(plan), plan) for plan in plans(space)]
    if not needs:
        return NoLayoutError(
            f"no layout of this model multiplies to {space.num_gpus} GPUs and divides a global_batch_size of "
            f"{space.global_batch_size}; try a multiple of a power of two for both",
            divides=False,
        )
    assert memory_gib is not None
    needed, plan = min(needs, key=lambda need: need[0])
    return NoLayoutError(
        f"no layout fits: the leanest of {len(needs):,} needs {needed / GIB:.1f} GiB on a GPU that has "
        f"{memory_gib:.1f}, {needed / GIB - memory_gib:.1f} GiB too much ({described(plan)}); use more GPUs",
        divides=True,
    )


def _faster(timer: Timer, candidates: list[_Fitting], slowest_us: float, effort: Effort) -> list[Ranked]:
    """Return the candidates that are faster than a time and no near-duplicates of each other, the fastest first."""
    faster = (candidate for candidate in candidates if candidate.floor_us < slowest_us)
    ordered = takewhile(lambda found: found.step_us < slowest_us, in_order(timer, list(faster), effort))
    return folded(ordered, MOST_UNSURE)[0]


def recomputed(plan: Plan) -> str:
    """Return what a candidate recomputes: the mode, with its modules."""
    return f"{plan.recompute} ({', '.join(plan.modules)})" if plan.modules else str(plan.recompute)


def described(plan: Plan) -> str:
    """Return a candidate in the short form that messages and tables use."""
    degrees = plan.degrees
    parts = [f"tp {degrees.tensor}", f"pp {degrees.pipeline}", f"dp {degrees.data}"]
    parts += [f"cp {degrees.context}"] if degrees.context > 1 else []
    parts += [f"ep {degrees.expert}"] if degrees.expert > 1 else []
    parts += ["experts whole"] if degrees.expert_split == 1 < degrees.tensor else []
    parts.append(f"micro-batch {plan.micro_batch_size}")
    parts += ["sequence parallel"] if plan.sequence_parallel else []
    parts += [f"recompute {recomputed(plan)}", f"ZeRO-{plan.zero_stage}"]
    interleaving = f" × {plan.num_chunks}" if plan.num_chunks > 1 else ""
    return ", ".join([*parts, plan.schedule + interleaving] if degrees.pipeline > 1 else parts)
