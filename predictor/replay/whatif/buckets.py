"""Changes of gradient buckets and of when they are reduced.

PyTorch's DistributedDataParallel fills buckets with gradients in the order in which they become ready, closes a bucket
when its size reaches the cap, and reduces it once all of it is there. With the default cap of 25 MiB the first bucket
has 1 MiB. Source: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size; torch/nn/parallel/
distributed.py, bucket_cap_mb.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.base.words import counted
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.timeline.graph import GraphTask
from predictor.replay.graph.gradient_buckets import SIZE_TOLERANCE, gradient_bytes
from predictor.replay.graph.local_graph import TaskKind
from predictor.replay.whatif.bucket_launches import BucketLaunches, Readies, bucket_launches, readies_of
from predictor.replay.whatif.collective_times import (
    CollectiveCosts,
    SystemCosts,
    TimedCollective,
    measured_over_predicted,
    timed_collectives,
)
from predictor.replay.whatif.scaling import touched
from predictor.replay.whatif.setting import Changed, Setting, Touched
from predictor.replay.whatif.traced_step import ADDED, Role, TracedStep, product, waiting_also
from predictor.replay.whatif.traffic import links_of, ratios_told

MIB = 2**20
DEFAULT = "default"
DEFAULT_CAPS = (1.0, 25.0)
LARGEST_CAP = 1e6


class Gradient(NamedTuple):
    """A gradient: its size, the task of the replay that completes it, and its backward operator."""

    size_bytes: float
    ready: int
    operator: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together."""

    gradients: tuple[Gradient, ...]

    @property
    def size_bytes(self) -> float:
        """Return the size of all gradients."""
        return sum(gradient.size_bytes for gradient in self.gradients)

    @property
    def operators(self) -> frozenset[int]:
        """Return the operators that complete its gradients."""
        return frozenset(gradient.operator for gradient in self.gradients)


def reductions(step: TracedStep, setting: Setting) -> list[TimedCollective]:
    """Return the collectives that reduce gradients.

    Raises:
        ConfigError: the trace does not tell which gradients any collective reduces.
    """
    listed = [timed for timed in timed_collectives(step) if timed.collective.gradients]
    if not listed:
        raise ConfigError(f"--set {setting.text}: no collective of the step is known to reduce gradients")
    return listed


def gradients_of(step: TracedStep, timed: TimedCollective, readies: Readies) -> tuple[list[Gradient], bool]:
    """Return the gradients of a collective in the order in which they become ready, and whether their sizes are known.

    Where their shapes do not add up to the bucket, it is shared evenly between them.
    """
    local = step.ranks[timed.rank]
    operators = [local.operators[position] for position in timed.collective.gradients]
    sizes = [gradient_bytes(operator) for operator in operators]
    whole = timed.collective.size_bytes
    known = all(sizes) and abs(sum(sizes) - whole) <= SIZE_TOLERANCE * whole
    if not known:
        sizes = [whole // len(operators)] * len(operators)
    tasks = [readies.of(operator) for operator in operators]
    numbered = zip(sizes, tasks, timed.collective.gradients, strict=True)
    return [Gradient(size, ready, operator) for size, ready, operator in numbered if ready is not None], known


def bucketed(gradients: Iterable[Gradient], caps_bytes: Sequence[float]) -> list[Bucket]:
    """Return gradients in buckets: each is closed when it reaches its cap, the last of which holds for all others."""
    buckets: list[Bucket] = []
    open_bucket: list[Gradient] = []
    size = 0.0
    for gradient in gradients:
        open_bucket.append(gradient)
        size += gradient.size_bytes
        if size >= caps_bytes[min(len(buckets), len(caps_bytes) - 1)]:
            buckets.append(Bucket(tuple(open_bucket)))
            open_bucket, size = [], 0.0
    return buckets + ([Bucket(tuple(open_bucket))] if open_bucket else [])


def _caps(setting: Setting) -> tuple[float, ...]:
    if setting.value == DEFAULT:
        caps: tuple[float, ...] = DEFAULT_CAPS
    else:
        try:
            caps = tuple(float(value) for value in setting.value.split(","))
        except ValueError:
            caps = (0.0,)
    if setting.multiplies or not all(0.0 < cap < LARGEST_CAP for cap in caps):
        raise ConfigError(
            f"--set {setting.text}: expected bucket_mb=25, bucket_mb=1,25 for a first bucket of another size, or "
            f"bucket_mb={DEFAULT}"
        )
    return tuple(cap * MIB for cap in caps)


def change_buckets(step: TracedStep, setting: Setting, system: PublishedSystem | None) -> Changed:
    """Reduce the traced gradients in other buckets, each once every rank has its gradients and has launched it.

    A bucket of the same gradients as a traced one keeps its time. Others follow the links that fit the traced
    collectives, or the system's collectives, in their measured ratio.
    """
    caps = _caps(setting)
    old = reductions(step, setting)
    _, links = links_of(step, setting)
    costs_of: CollectiveCosts = links if system is None else SystemCosts(system)
    ratios = measured_over_predicted(old, costs_of)
    readies = readies_of(step)
    by_rank: list[list[Bucket]] = []
    all_known = True
    for rank in range(len(step.ranks)):
        gradients: list[Gradient] = []
        for timed in old:
            if timed.rank == rank:
                listed, known = gradients_of(step, timed, readies[rank])
                gradients += listed
                all_known &= known
        by_rank.append(bucketed(gradients, caps))
    if len({len(buckets) for buckets in by_rank}) > 1:
        counts = ", ".join(str(len(buckets)) for buckets in by_rank)
        raise ConfigError(
            f"--set {setting.text}: the ranks' gradients fill {counts} buckets; all ranks reduce the same"
        )
    what = f"{counted(len(old) // len({timed.rank for timed in old}), 'bucket')} of a rank → {len(by_rank[0])}"
    old_us = sum(timed.us for timed in old)
    traced = {(timed.rank, frozenset(timed.collective.gradients)): timed for timed in old}
    new = [(rank, bucket) for rank, buckets in enumerate(by_rank) for bucket in buckets]
    same = sum((rank, bucket.operators) in traced for rank, bucket in new)
    if same == len(new) == len(old):
        return Changed(step, Touched(what, old_us, old_us, ("The traced buckets are so already.",)))

    def cost_of(rank: int, bucket: Bucket, like: TimedCollective) -> Cost:
        if (rank, bucket.operators) in traced:
            return step.cost(traced[rank, bucket.operators].position)
        return product(costs_of(like.name, bucket.size_bytes, like.ranks), ratios)

    more = _with_buckets(step, old, by_rank, cost_of)
    added = range(len(step.tasks), len(more.tasks))
    after = _without_old(more, old, added)
    notes = [f"By {costs_of.told()}; {ratios_told(ratios)}, which is kept."]
    if system is None:
        notes += links.doubts()
    if same:
        notes.append(f"{counted(same, 'bucket')} of the same gradients as before kept the measured time.")
    if not all_known:
        notes.append("Shapes of gradients are not in the trace: a bucket's bytes are shared evenly between them.")
    us = sum(after.tasks[position].duration_us for position in added)
    return Changed(after, Touched(what, old_us, us, tuple(notes)))


def _with_buckets(
    step: TracedStep,
    old: Sequence[TimedCollective],
    by_rank: Sequence[Sequence[Bucket]],
    cost_of: Callable[[int, Bucket, TimedCollective], Cost],
) -> TracedStep:
    """Return the step with a collective for every new bucket of every rank, besides the old ones."""
    tasks, roles, costs, added = list(step.tasks), list(step.roles), dict(step.costs), dict(step.added)
    everything = _readies(bucket for buckets in by_rank for bucket in buckets)
    examples = [next(timed for timed in old if timed.rank == rank) for rank in range(len(by_rank))]
    launches = [
        bucket_launches(local, [timed.collective for timed in old if timed.rank == rank])
        for rank, local in enumerate(step.ranks)
    ]
    for number in range(len(by_rank[0])):
        at_number = [buckets[number] for buckets in by_rank]
        after, lags = _waits(step, launches, at_number, _readies(at_number) if step.overlaps else everything)
        for rank, (bucket, example) in enumerate(zip(at_number, examples, strict=True)):
            position, like = len(tasks), step.tasks[example.position]
            cost = cost_of(rank, bucket, example)
            if cost.source is not Source.MEASURED:
                costs[position] = cost
            added[position] = example.collective._replace(
                task=ADDED,
                size_bytes=round(bucket.size_bytes),
                order=number,
                gradients=tuple(gradient.operator for gradient in bucket.gradients),
            )
            stream = f"{like.stream}, buckets"
            tasks.append(GraphTask(like.name, like.rank, stream, cost.us, after, lags, True, like.category))
            roles.append(Role(rank, ADDED, TaskKind.COLLECTIVE, "backward", example.name, computes=False))
    return replace(step, tasks=tasks, roles=roles, costs=costs, added=added)


def _waits(
    step: TracedStep, launches: Sequence[BucketLaunches], buckets: Sequence[Bucket], readies: Sequence[int]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return what one bucket, with its parts on all ranks, waits for: gradients, then the launch on every rank."""
    lags = dict.fromkeys(readies, 0.0)
    places = step.places()
    for rank, bucket in enumerate(buckets):
        for task, lag_us in launches[rank].waits(bucket.gradients[-1].operator):
            position = places[rank][task]
            lags[position] = max(lag_us, lags.get(position, 0.0))
    return tuple(lags), tuple(lags.values())


def _readies(buckets: Iterable[Bucket]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(gradient.ready for bucket in buckets for gradient in bucket.gradients))


def _without_old(step: TracedStep, old: Sequence[TimedCollective], new: Iterable[int]) -> TracedStep:
    """Return the step in which new collectives stand for old ones.

    An old one stays as a task that takes no time and that no other one of its stream waits for; whoever waited for it
    waits for the new ones that have its gradients.
    """
    tasks, costs, places = list(step.tasks), dict(step.costs), step.places()
    has = [(step.roles[at].rank, at, set(step.added[at].gradients)) for at in new]
    instead: dict[int, list[int]] = {}
    for timed in old:
        own = timed.collective.gradients
        instead[timed.position] = [at for rank, at, inside in has if rank == timed.rank and not inside.isdisjoint(own)]
        for position in {timed.position, step.entry(timed.position)}:
            tasks[position] = tasks[position]._replace(duration_us=0.0, lags_us=(), is_exclusive=False)
        costs.pop(timed.position, None)
    for position in (at for of_rank in places for at in of_rank.values()):
        waits = [at for before in tasks[position].after for at in instead.get(before, ())]
        tasks[position] = waiting_also(tasks[position], waits)
    replaced = frozenset(step.replaced) | instead.keys()
    return replace(step, tasks=tasks, costs=costs, replaced=replaced)


def change_overlap(step: TracedStep, setting: Setting) -> Changed:
    """Reduce gradients after the last of them (false), or each bucket without waiting for those of others (true).

    The host launches every bucket when it did.

    Raises:
        ConfigError: neither true nor false, or it is not known which gradients a collective reduces.
    """
    if setting.multiplies or setting.value not in ("true", "false"):
        raise ConfigError(f"--set {setting.text}: expected overlap=true or overlap=false")
    listed = reductions(step, setting)
    readies = readies_of(step)
    own = {timed.position: [g.ready for g in gradients_of(step, timed, readies[timed.rank])[0]] for timed in listed}
    changed = {}
    for timed in listed:
        entry = step.entry(timed.position)
        task = step.tasks[entry]
        everyone = {ready for other in listed if other.rank == timed.rank for ready in own[other.position]}
        if setting.value == "true":
            changed[entry] = _without(task, everyone.difference(own[timed.position]))
        else:
            changed[entry] = waiting_also(task, sorted(everyone))
    kept = {position: step.costs[position] for position in changed if position in step.costs}
    after = replace(step.with_tasks(changed, kept), overlaps=setting.value == "true")
    note = "Computing is as fast beside traffic as without, as far as this change knows."
    positions = [timed.position for timed in listed]
    return touched(step, after, positions, counted(len(listed), "bucket"), note)


def _without(task: GraphTask, others: Container[int]) -> GraphTask:
    """Return a task that does not wait for others."""
    lags = task.lags_us or (0.0,) * len(task.after)
    kept = [(before, lag) for before, lag in zip(task.after, lags, strict=True) if before not in others]
    return task._replace(after=tuple(before for before, _ in kept), lags_us=tuple(lag for _, lag in kept))


def no_buckets(step: TracedStep, setting: Setting) -> str:
    """Return which collectives cannot be buckets, as gradients wait for them; empty without such."""
    dependents: dict[int, list[int]] = {}
    last: dict[tuple[int, str], int] = {}
    for position, task in enumerate(step.tasks):
        before = last.get((task.rank, task.stream), position) if task.is_exclusive else position
        if task.is_exclusive:
            last[task.rank, task.stream] = position
        for predecessor in {before, *task.after} - {position}:
            dependents.setdefault(predecessor, []).append(position)
    listed, of_rank = reductions(step, setting), readies_of(step)
    readies = {g.ready for timed in listed for g in gradients_of(step, timed, of_rank[timed.rank])[0]}
    blocking = set()
    for timed in listed:
        reached, ahead = {timed.position}, [timed.position]
        while ahead:
            new = set(dependents.get(ahead.pop(), ())) - reached
            reached |= new
            ahead += new
        if not reached.isdisjoint(readies):
            group = timed.collective.group
            blocking.add(f"{timed.collective.name} of {f'group {group}' if group else 'a group without a name'}")
    told = ", ".join(sorted(blocking))
    return f"gradients wait for {told}, so these collectives are no buckets of gradients" if blocking else ""
