"""A data-parallel job whose ranks run on different devices, from traces of the job on each of them.

A rank takes the local graph of its device: a trace measured on it, or one of another device whose computing tasks are
scaled by how much faster the other system is. Ranks start together and meet at every collective, as the ranks of one
measured job do.

Source: QSync (Zhao et al. 2024, arXiv:2407.02327), whose predictor replays the ranks of training and inference GPUs
together; dPRO (arXiv:2205.02473).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from predictor.core.timeline.graph import replay_graph
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.clocks import Clock
from predictor.replay.graph.global_graph import GlobalGraph, JoinedCollective, Member, global_graph, join, with_locals
from predictor.replay.graph.global_replay import is_computing
from predictor.replay.graph.local_graph import NO_OPERATOR, Collective, LocalGraph, TaskKind
from predictor.replay.graph.local_replay import graph_tasks_of
from predictor.replay.graph.matching import MESSAGES, Call, match_collectives
from predictor.replay.graph.rank_count import CollectiveTime, alone, ring_traffic, transfer_scale

FITTING = 2  # collectives that one offset of two clocks must fit; it fits any single one
# What the time of a task in an operator is multiplied by: of a graph, the operator's position; NO_OPERATOR: of none.
OperatorRatio = Callable[[LocalGraph, int], float]


class Place(NamedTuple):
    """What one rank of a mixed job runs.

    Attributes:
        job: the measured job that the trace is from; one trace alone is a job of one traced rank.
        rank: of the trace, within that job.
        ratio: to the device that the rank runs on; None: it runs on the device that was traced.
        device_name: of the device that the rank runs on; empty: as the trace says.
    """

    job: GlobalGraph
    rank: int
    ratio: OperatorRatio | None = None
    device_name: str = ""

    def local(self) -> LocalGraph:
        """Return the local graph on the rank's device."""
        local = self.job.local(self.rank)
        return local if self.ratio is None else on_device(local, self.ratio, self.device_name)


def same_ratio(ratio: float) -> OperatorRatio:
    """Return one ratio for all operators."""
    return lambda local, operator: ratio


def on_device(local: LocalGraph, ratio: OperatorRatio, device_name: str = "") -> LocalGraph:
    """Return a local graph with the time of every computing task multiplied, and its starts as replayed.

    Tasks of a GPU's host, copies, collectives and lags keep their times: an exchanged GPU leaves its host as it was.

    Raises:
        RecordError: a ratio is not finite or not positive.
    """
    tasks = []
    for task in local.tasks:
        if is_computing(local, task) and task.kind is not TaskKind.COPY:
            factor = ratio(local, task.operator)
            if not (isfinite(factor) and factor > 0.0):
                is_none = task.operator == NO_OPERATOR
                name = "tasks outside of operators" if is_none else local.operators[task.operator].name
                raise RecordError(f"the ratio of {name} is {factor}; it must be finite and more than 0")
            task = task._replace(duration_us=task.duration_us * factor)
        tasks.append(task)
    changed = replace(local, tasks=tasks, device_name=device_name or local.device_name)
    spans = replay_graph(graph_tasks_of(changed)).spans
    moved = [
        task._replace(start_us=span.start_us, duration_us=span.end_us - span.start_us)
        for task, span in zip(tasks, spans, strict=True)
    ]
    return replace(changed, tasks=moved, step_us=max((span.end_us for span in spans), default=0.0))


def measured_jobs(locals_: Sequence[LocalGraph]) -> list[GlobalGraph]:
    """Return the jobs that traces are from: different ranks of one job are one.

    They are of one job if they ran at the same time by their recorded clocks; or else, as hosts' clocks may be far
    apart, if they are of the same step and one offset of the clocks fits all their collectives.

    Raises:
        RecordError: the ranks of one job run different collectives.
    """
    jobs: list[list[LocalGraph]] = []
    for local in locals_:
        job = next((job for job in jobs if _is_one_job(job, local)), None)
        if job is None:
            jobs.append([local])
        else:
            job.append(local)
    return [global_graph(job, sizes_agree=False) for job in jobs]


def _is_one_job(job: Sequence[LocalGraph], local: LocalGraph) -> bool:
    """Return whether a trace is of another rank of a job."""
    if local.world_size < 2 or any(o.world_size != local.world_size or o.rank == local.rank for o in job):
        return False
    if all(abs(other.begin_us - local.begin_us) < max(other.step_us, local.step_us) for other in job):
        return True
    if any(other.label != local.label for other in job):
        return False
    try:
        graph = global_graph([*job, local], sizes_agree=False)
    except RecordError:
        return False
    return all(clock.is_consistent and clock.meetings >= FITTING for clock in graph.clocks)


def mixed_graph(
    places: Sequence[Place], collective_us: CollectiveTime = ring_traffic, keeps_starts: bool = True
) -> GlobalGraph:
    """Return the graph of a data-parallel job, one rank for each place.

    Places that are all ranks of one measured job keep its clocks and transfers, and with ``keeps_starts`` a rank that
    began its step later than the others does so again. Otherwise the ranks start together.
    A collective's transfer takes as long as in the slowest of the measured jobs, each without its waiting, times what
    ``collective_us`` says for the mixed ranks over what it says for the measured ones. Collectives of groups that do
    not hold all ranks of a measured job keep their measured time.

    Raises:
        RecordError: there is no place, or the traces run different collectives.
    """
    if not places:
        raise RecordError("a mixed job has no ranks; give each of its ranks a trace")
    job = places[0].job
    is_measured = keeps_starts and all(place.job is job for place in places)
    if is_measured and [p.rank for p in places] == [rank.rank for rank in job.ranks]:
        return with_locals(job, [place.local() for place in places])
    locals_ = [_renumbered(place.local(), rank, len(places)) for rank, place in enumerate(places)]
    calls, notes = match_collectives(locals_, sizes_agree=False)
    own = [own_collectives(place) for place in places]
    collectives = [_mixed(call, places, own, collective_us) for call in calls]
    if any(len(joined.members) == 1 < joined.ranks for calls_of in own for joined in calls_of.values()):
        notes.append("a rank's job has no other trace: its waiting for other ranks counts as transfer")
    clocks = [Clock(rank, 0.0, 0.0, 0.0, 0.0, 0.0, 0) for rank in range(len(places))]
    if len({id(place.job) for place in places}) > 1:
        notes.append("traces of different jobs: their ranks start the step together")
    if not collectives and len(places) > 1:
        notes.append("the traces have no collective in common: the ranks do not wait for each other")
    return join(locals_, clocks, collectives, notes)


def _renumbered(local: LocalGraph, rank: int, ranks: int) -> LocalGraph:
    """Return a local graph as one of a mixed job, whose groups of all ranks are counted as they come."""
    everyone = tuple(range(ranks))
    names: dict[str, str] = {}
    collectives: list[Collective] = []
    for collective in local.collectives:
        size = len(collective.group_ranks) or local.world_size
        if size >= local.world_size and collective.name not in MESSAGES:
            group = names.setdefault(collective.group, f"data parallel {len(names)}")
            collective = collective._replace(group=group, group_ranks=everyone, peer=-1)
        else:
            collective = collective._replace(group=f"{collective.group} of rank {rank}", group_ranks=(rank,))
        collectives.append(collective)
    return replace(local, rank=rank, world_size=ranks, begin_us=0.0, collectives=collectives)


def _mixed(
    calls: Sequence[Call], places: Sequence[Place], own: Sequence[Mapping[int, JoinedCollective]], us: CollectiveTime
) -> JoinedCollective:
    """Return a collective of a mixed job.

    Args:
        calls: of its ranks.
        places: of all ranks.
        own: by rank, what each collective took in the job that its trace is from.
        us: see ``mixed_graph``.
    """
    times = []
    for call in calls:
        measured = own[call.rank][call.collective.task]
        is_resized = measured.ranks not in (1, len(calls))
        scale = transfer_scale(measured, len(calls), us) if is_resized else None
        times.append(scale(measured.own_us) if scale else measured.own_us)
    everyone = tuple(range(len(calls)))
    members = tuple(Member(call.rank, call.collective.task, max(times), everyone) for call in calls)
    first = calls[0].collective
    return JoinedCollective(first.name, first.group, first.size_bytes, len(calls), members, max(times))


def own_collectives(place: Place) -> dict[int, JoinedCollective]:
    """Return, by task, the collectives of a place's trace; one that its job did not join counts its waiting."""
    own = {joined.members[0].task: joined for joined in alone(place.job.local(place.rank))}
    for joined in place.job.collectives:
        own.update({member.task: joined for member in joined.members if member.rank == place.rank})
    return own
