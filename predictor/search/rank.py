"""Rank the candidates of a space: bound all of them, replay in the order of their bounds until none can be better."""

from __future__ import annotations

import gc
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from predictor.costs.published import PublishedSystem
from predictor.errors import ConfigError
from predictor.memory import GIB
from predictor.search.footprint import Footprints
from predictor.search.space import Plan, Space
from predictor.search.stages import Pipelines
from predictor.search.timer import Timer

# A bound and a replay add up the same numbers in another order.
ROUNDING = 1e-9
# Nobody pays for memory that they have with more than this many times the fastest layout's time.
WORTHWHILE = 3.0


class Ranked(NamedTuple):
    """One candidate that fits, with the replayed time of its step and the memory of its fullest GPU."""

    step_us: float
    memory_bytes: float
    plan: Plan


class _Bounded(NamedTuple):
    bound_us: float
    memory_bytes: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search found.

    Attributes:
        best: the fastest candidates, the fastest first.
        pareto: those that no other beats in both time and memory, up to WORTHWHILE times the fastest one's time, the
            leanest first; empty where nobody asked.
        considered: candidates of the space.
        fitting: those that fit into memory.
        replayed: those whose bound asked for a replay.
    """

    best: list[Ranked]
    pareto: list[Ranked]
    considered: int
    fitting: int
    replayed: int


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
                for recompute in recomputes:
                    for schedule, pieces in orders[key]:
                        for zero in zeros:
                            yield Plan(degrees, zero, parallel, size, count, recompute, schedule, pieces)


def _replayed(timer: Timer, one: _Bounded) -> Ranked:
    return Ranked(timer.step_us(one.plan), one.memory_bytes, one.plan)


def fastest(timer: Timer, bounded: list[_Bounded], top: int) -> tuple[list[Ranked], int]:
    """Return the fastest candidates, and how many were replayed: as many as have a bound below the last one's time."""
    best: list[Ranked] = []
    replayed = 0
    for one in sorted(bounded, key=lambda one: one.bound_us):
        if len(best) == top and one.bound_us * (1.0 - ROUNDING) > best[-1].step_us:
            break
        replayed += 1
        insort(best, _replayed(timer, one), key=lambda ranked: (ranked.step_us, ranked.memory_bytes))
        del best[top:]
    return best, replayed


def pareto_front(timer: Timer, bounded: list[_Bounded], slowest_us: float) -> list[Ranked]:
    """Return the candidates up to a time that no other beats in both step time and memory, the leanest first."""
    front: list[Ranked] = []
    for one in sorted(bounded, key=lambda one: (one.memory_bytes, one.bound_us)):
        if one.bound_us > slowest_us:
            continue
        if front and one.bound_us * (1.0 - ROUNDING) >= front[-1].step_us:
            continue
        ranked = _replayed(timer, one)
        if ranked.step_us <= slowest_us and (not front or ranked.step_us < front[-1].step_us):
            if front and front[-1].memory_bytes == ranked.memory_bytes:
                front.pop()
            front.append(ranked)
    return front


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the garbage collector from going over a search's many small values, none of which refers back."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def rank(space: Space, system: PublishedSystem, memory_gib: float | None, top: int, pareto: bool = False) -> Ranking:
    """Rank every candidate of a space.

    Args:
        space: what to choose from.
        system: times it.
        memory_gib: memory of one GPU; None where nothing is too large.
        top: how many to return.
        pareto: look for the Pareto front as well.

    Raises:
        ConfigError: there is no candidate, or none fits; the message says by how much.
    """
    with _uncollected():
        return _rank(space, system, memory_gib, top, pareto)


def _rank(space: Space, system: PublishedSystem, memory_gib: float | None, top: int, pareto: bool) -> Ranking:
    pipelines = Pipelines(space)
    timer, footprints = Timer(space, system, pipelines), Footprints(space, pipelines)
    limit = None if memory_gib is None else memory_gib * GIB
    bounded: list[_Bounded] = []
    leanest: _Bounded | None = None
    considered = 0
    for plan in plans(space):
        considered += 1
        memory = footprints.memory_bytes(plan)
        if leanest is None or memory < leanest.memory_bytes:
            leanest = _Bounded(0.0, memory, plan)
        if limit is None or memory <= limit:
            bounded.append(_Bounded(timer.bound_us(plan), memory, plan))
    if leanest is None:
        raise ConfigError(
            f"no layout of this model multiplies to {space.num_gpus} GPUs and divides a global_batch_size of "
            f"{space.global_batch_size}; try a multiple of a power of two for both"
        )
    if not bounded:
        assert memory_gib is not None
        needed = leanest.memory_bytes / GIB
        raise ConfigError(
            f"no layout fits: the leanest of {considered:,} needs {needed:.1f} GiB on a GPU that has {memory_gib:.1f}, "
            f"{needed - memory_gib:.1f} GiB too much ({described(leanest.plan)}); use more GPUs"
        )
    best, replayed = fastest(timer, bounded, top)
    front = pareto_front(timer, bounded, WORTHWHILE * best[0].step_us) if pareto else []
    return Ranking(best, front, considered, len(bounded), replayed)


def described(plan: Plan) -> str:
    """Return a candidate in the short form that messages and tables use."""
    degrees = plan.degrees
    parts = [f"tp {degrees.tensor}", f"pp {degrees.pipeline}", f"dp {degrees.data}"]
    parts += [f"cp {degrees.context}"] if degrees.context > 1 else []
    parts += [f"ep {degrees.expert}"] if degrees.expert > 1 else []
    parts.append(f"micro-batch {plan.micro_batch_size}")
    parts += ["sequence parallel"] if plan.sequence_parallel else []
    parts += [f"recompute {plan.recompute}", f"ZeRO-{plan.zero_stage}"]
    pieces = f" × {plan.pieces}" if plan.pieces > 1 else ""
    return ", ".join([*parts, plan.schedule + pieces] if degrees.pipeline > 1 else parts)
