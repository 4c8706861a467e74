"""Branch and bound over layouts: floors, then bounds, then replays of those that may still be the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice, takewhile
from math import inf
from typing import NamedTuple

from predictor.core.base.collector import paused_collector
from predictor.core.base.errors import NoLayoutError
from predictor.core.base.quantities import duration
from predictor.core.base.words import counted
from predictor.core.costs.published import PublishedSystem
from predictor.core.step.memory import GIB
from predictor.core.step.memory_verdict import MEMORY_ERROR
from predictor.layout_search.candidate import Plan
from predictor.layout_search.footprint import Footprints
from predictor.layout_search.lines import AS_FEW_AS_FIT, Cell, Line, cells
from predictor.layout_search.near_duplicates import Ranked, folded
from predictor.layout_search.shared_parts import SharedParts
from predictor.layout_search.space import Space
from predictor.layout_search.stages import ROUNDING, Key
from predictor.layout_search.timer import Timer
from predictor.layout_search.watch import WATCH

# The Pareto front ends at this many times the fastest layout's time.
WORTHWHILE = 3.0
SHARED, FLOOR, BOUND, REPLAY = range(4)
# Of a search that is ended before its first replay, so many candidates get a bound; the least is replayed.
LIKELY = 64
# Faster layouts to name beside the best, of those that may not fit.
MOST_UNSURE = 3


class Fitting(NamedTuple):
    """Candidates of a line that fit: their numbers in it."""

    line: Line
    numbers: Sequence[int]


class Candidate(NamedTuple):
    """One candidate of a line."""

    line: Line
    number: int

    @property
    def plan(self) -> Plan:
        """Return its choices."""
        return self.line.plan(self.number)

    @property
    def order(self) -> tuple[int, ...]:
        """Return its place in the space."""
        return self.line.order(self.number)


class _Open(NamedTuple):
    """Candidates in the queue: a time that none of their steps can be shorter than, and how it is known.

    Attributes:
        us: the shared floor, the floor, the bound or, at last, the replay.
        known_by: SHARED, FLOOR, BOUND or REPLAY; of equal times the vaguest comes first.
        memory_bytes: of equal replays the leanest comes first; 0 before a bound.
        order: of the candidate in its space, or of the group; keeps the queue from comparing candidates.
        candidates: those that share a floor; otherwise a single one.
    """

    us: float
    known_by: int
    memory_bytes: float
    order: tuple[int, ...]
    candidates: list[Candidate]


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
        is_complete: no other is faster; not where the search was ended before it knew.
    """

    best: list[Ranked]
    near_duplicates: list[list[Ranked]]
    pareto: list[Ranked]
    considered: int
    fitting: int
    bounded: int
    replayed: int
    unsure: list[Ranked]
    is_complete: bool = True


@dataclass(slots=True)
class Effort:
    """How many candidates were bounded and replayed on the way."""

    bounded: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Pricing:
    """What a search knows of the time and the memory of its candidates.

    Attributes:
        certain: bytes of one GPU that fit for certain.
    """

    timer: Timer
    footprints: Footprints
    certain: float = inf

    def settled(self, candidate: Candidate) -> Candidate | None:
        """Return a candidate with as few recomputed layers as fit, where memory decides; None where that is none."""
        line, number = candidate
        if line.first.recompute_layers != AS_FEW_AS_FIT:
            return candidate
        plan = self.footprints.least_recomputed(line.plan(number), self.certain)
        return None if plan is None else Candidate(line.settled(plan, number), 0)


def in_order(pricing: Pricing, fits: Iterable[Fitting], effort: Effort, below_us: float = inf) -> Iterator[Ranked]:
    """Return candidates, the fastest first, looking no further than asked.

    Branch and bound: of those that share a floor the first to have the least known time get their own, and then a
    bound and a replay one by one; a replayed candidate with the least known time is the next of the ranking. Where
    nobody waits any longer, those that were replayed so far are the rest of it.

    Args:
        pricing: of the candidates.
        fits: the candidates.
        effort: counts bounds and replays.
        below_us: candidates whose floor is not below it are left out.
    """
    timer, footprints, watch = pricing.timer, pricing.footprints, WATCH.get()
    queue = [entry for entry in by_shared_floor(timer, fits) if entry.us < below_us]
    heapify(queue)

    def progress() -> str:
        counts = f"{effort.bounded:,} layouts bounded, {effort.replayed:,} replayed"
        return f"{counts}; the fastest takes {duration(queue[0].us)} or more"

    while queue:
        if not watch.follows(progress):
            queue = _so_far(pricing, queue)
        us, known_by, memory, order, candidates = heappop(queue)
        plan = candidates[0].plan
        if known_by == SHARED:
            for candidate in filter(None, map(pricing.settled, candidates)):
                floor_us = timer.floor_us(candidate.plan)
                if floor_us < below_us:
                    heappush(queue, _Open(floor_us, FLOOR, 0.0, candidate.order, [candidate]))
        elif known_by == FLOOR:
            effort.bounded += 1
            bound_us = timer.bound_us(plan) * (1.0 - ROUNDING)
            heappush(queue, _Open(bound_us, BOUND, footprints.memory_bytes(plan), order, candidates))
        elif known_by == BOUND:
            effort.replayed += 1
            heappush(queue, _Open(timer.step_us(plan), REPLAY, memory, order, candidates))
        else:
            yield Ranked(us, memory, plan)


def _so_far(pricing: Pricing, queue: list[_Open]) -> list[_Open]:
    """Return the replayed candidates of a queue, the fastest first; where there are none, the likeliest, replayed."""
    replayed = sorted(entry for entry in queue if entry.known_by == REPLAY)
    if replayed:
        return replayed
    timer, firsts = pricing.timer, [entry.candidates[0] for entry in nsmallest(LIKELY, queue)]
    likeliest = min(firsts, key=lambda candidate: timer.bound_us(candidate.plan))
    plan = likeliest.plan
    memory = pricing.footprints.memory_bytes(plan)
    return [_Open(timer.step_us(plan), REPLAY, memory, likeliest.order, [likeliest])]


def by_shared_floor(timer: Timer, fits: Iterable[Fitting]) -> Iterator[_Open]:
    """Return candidates together with all that have the same shared floor."""
    groups: dict[Key, dict[tuple[int, int], list[Candidate]]] = {}
    for line, numbers in fits:
        group = groups.setdefault(timer.shared_floor_key(line.first), {})
        for number in numbers:
            group.setdefault(line.batches[number], []).append(Candidate(line, number))
    for g, group in enumerate(groups.values()):
        for (size, _), candidates in group.items():
            yield _Open(timer.shared_floor_us(candidates[0].plan), SHARED, 0.0, (g, size), candidates)


def pareto_front(pricing: Pricing, fits: Iterable[Fitting], slowest_us: float) -> list[Ranked]:
    """Return the candidates up to a time that no other beats in both step time and memory, the leanest first."""
    timer, footprints = pricing.timer, pricing.footprints
    candidates = [Candidate(line, number) for line, numbers in fits for number in numbers]
    sized = [(footprints.memory_bytes(each.plan), timer.floor_us(each.plan), each.order, each) for each in candidates]
    front: list[Ranked] = []
    limit = slowest_us
    for memory, floor_us, _, (line, number) in sorted(sized):
        plan = line.plan(number)
        if floor_us > limit or timer.bound_us(plan) * (1.0 - ROUNDING) > limit:
            continue
        step_us = timer.step_us(plan)
        if step_us > slowest_us or (front and step_us >= front[-1].step_us):
            continue
        if front and front[-1].memory_bytes == memory:
            front.pop()
        front.append(Ranked(step_us, memory, plan))
        limit = step_us
    return front


def fitting(
    space: Sequence[Cell], footprints: Footprints, certain: float, limit: float
) -> tuple[list[Fitting], list[Fitting]]:
    """Return the candidates that need no more than certain bytes, and those that need more, up to a limit.

    Lines whose states alone are too large are left out; others probably fit up to the micro-batch of those before.
    Where nobody waits any longer, those of the first cells are returned.

    Raises:
        KeyboardInterrupt: nobody waits any longer, and none was found.
    """
    sure: list[Fitting] = []
    near: list[Fitting] = []
    watch = WATCH.get()
    for number, cell in enumerate(space):
        if not watch.follows(partial("memory of {:,} of {:,} ways to split the GPUs".format, number, len(space))):
            if sure or near:
                break
            raise KeyboardInterrupt
        likely: dict[object, tuple[int, int]] = {}
        for line in cell.lines(lambda plan: footprints.least_bytes(plan) <= limit):
            first = line.first
            switches = first.sequence_parallel, first.recompute, first.modules, first.offload_modules
            fits, may_fit = footprints.fitting(line, certain, limit, likely.get(switches, (0, 0)))
            likely[switches] = len(fits), len(fits) + len(may_fit)
            sure += [Fitting(line, fits)] if fits else []
            near += [Fitting(line, may_fit)] if may_fit else []
    return sure, near


def partly_recomputed(space: Space, fits: Iterable[Fitting]) -> list[Fitting]:
    """Return the candidates that recompute as few layers of each chunk as fit, of those that fit recomputing all."""
    if space.rules is None or not space.rules.recomputes_some:
        return []
    return [Fitting(line.partly_recomputed, numbers) for line, numbers in fits if line.first.recomputes_all]


@paused_collector()
def rank(
    space: Space,
    system: PublishedSystem,
    memory_gib: float | None,
    top: int,
    pareto: bool = False,
    fold: bool = False,
    unsure: bool = True,
    parts: SharedParts | None = None,
) -> Ranking:
    """Rank every candidate of a space.

    Args:
        space: the candidates.
        system: times it.
        memory_gib: memory of one GPU; None: unlimited.
        top: how many to return.
        pareto: look for the Pareto front as well.
        fold: near-duplicates of a faster candidate are counted with it.
        unsure: look for faster candidates that may not fit as well.
        parts: shared with other searches.

    Raises:
        NoLayoutError: there is no candidate, or none may fit; the message says by how much.
    """
    limit = inf if memory_gib is None else memory_gib * GIB
    certain = limit * (1.0 - MEMORY_ERROR)
    pricing = Pricing(*(parts or SharedParts()).of(space, system), certain)
    every = list(cells(space))
    sure, tight = fitting(every, pricing.footprints, certain, limit)
    fits = [*sure, *tight] or fitting(every, pricing.footprints, limit, limit * (1.0 + MEMORY_ERROR))[1]
    if not fits:
        raise _without_layouts(space, pricing.footprints, memory_gib)
    effort = Effort()
    ordered = in_order(pricing, [*(sure or fits), *partly_recomputed(space, sure)], effort)
    best, near_duplicates = folded(ordered, top) if fold else (list(islice(ordered, top)), [])
    is_complete = not WATCH.get().stopped
    faster = _faster(pricing, tight, best[0].step_us, effort) if sure and unsure and is_complete else []
    return Ranking(
        best,
        near_duplicates,
        pareto_front(pricing, fits, WORTHWHILE * best[0].step_us) if pareto and is_complete else [],
        considered=sum([cell.size for cell in every]),
        fitting=sum([len(numbers) for _, numbers in fits]),
        bounded=effort.bounded,
        replayed=effort.replayed,
        unsure=faster,
        is_complete=is_complete,
    )


def _without_layouts(space: Space, footprints: Footprints, memory_gib: float | None) -> NoLayoutError:
    """Return why a search has no answer: nothing divides, or what the leanest candidate needs."""
    candidates = [
        Candidate(line, n) for cell in cells(space) for line in cell.lines() for n in range(len(line.batches))
    ]
    if not candidates:
        return NoLayoutError(
            f"no layout of this model multiplies to {space.num_gpus} GPUs and divides a global_batch_size of "
            f"{space.global_batch_size}; try a multiple of a power of two for both",
            divides=False,
        )
    assert memory_gib is not None
    needed, _, leanest = min((footprints.memory_bytes(each.plan), each.order, each) for each in candidates)
    return NoLayoutError(
        f"no layout fits: the leanest of {len(candidates):,} needs {needed / GIB:.1f} GiB on a GPU that has "
        f"{memory_gib:.1f}, {needed / GIB - memory_gib:.1f} GiB too much ({described(leanest.plan)}); use more GPUs",
        divides=True,
    )


def _faster(pricing: Pricing, fits: Iterable[Fitting], slowest_us: float, effort: Effort) -> list[Ranked]:
    """Return the candidates that are faster than a time and no near-duplicates of each other, the fastest first."""
    ordered = in_order(pricing, fits, effort, below_us=slowest_us)
    return folded(takewhile(lambda found: found.step_us < slowest_us, ordered), MOST_UNSURE)[0]


def recomputed(plan: Plan) -> str:
    """Return what a candidate recomputes: the mode, with its modules or layers."""
    of = [*plan.modules] if plan.recompute_layers is None else [f"{counted(plan.recompute_layers, 'layer')} a chunk"]
    return f"{plan.recompute} ({', '.join(of)})" if of else str(plan.recompute)


def offloaded(plan: Plan) -> list[str]:
    """Return the modules whose inputs are in host memory, as one word; none where there are none."""
    return [f"offload {', '.join(plan.offload_modules)}"] if plan.offload_modules else []


def shared(plan: Plan) -> str:
    """Return how replicas share out states: the ZeRO stage, with the ranks of a group."""
    return f"ZeRO-{plan.zero_stage}" + (f" in groups of {plan.zero_group}" if plan.zero_group is not None else "")


def experts_split(plan: Plan) -> str:
    """Return how experts are split where that differs from all else; empty where it does not."""
    split, tensor = plan.degrees.expert_split, plan.degrees.tensor
    if split is None or split == tensor:
        return ""
    return "experts whole" if split == 1 else f"experts over {split} ranks"


def described(plan: Plan) -> str:
    """Return a candidate in the short form that messages and tables use."""
    degrees = plan.degrees
    parts = [f"tp {degrees.tensor}", f"pp {degrees.pipeline}", f"dp {degrees.data}"]
    parts += [f"cp {degrees.context}"] if degrees.context > 1 else []
    parts += [f"ep {degrees.expert}"] if degrees.expert > 1 else []
    parts += [experts] if (experts := experts_split(plan)) else []
    parts.append(f"micro-batch {plan.micro_batch_size}")
    parts += ["sequence parallel"] if plan.sequence_parallel else []
    parts += [f"recompute {recomputed(plan)}", *offloaded(plan), shared(plan)]
    interleaving = f" × {plan.num_chunks}" if plan.num_chunks > 1 else ""
    return ", ".join([*parts, plan.schedule + interleaving] if degrees.pipeline > 1 else parts)
