"""Replay of the global dataflow graph: each rank's step, who waits for whom, and the critical path across ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from predictor.core.timeline.graph import GraphError, GraphReplay, replay_graph
from predictor.core.timeline.spans import Span
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.global_graph import GlobalGraph, JoinedCollective
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, TaskKind, TracedTask

Interval = tuple[float, float]
WAITING = "waiting"


class CollectiveReplay(NamedTuple):
    """One joined collective, replayed.

    Attributes:
        last_rank: that arrived last; the others wait for it.
        waits_us: by rank, from its arrival to the beginning of its transfer.
        end_us: when the last rank ends it.
    """

    collective: JoinedCollective
    last_rank: int
    waits_us: dict[int, float]
    start_us: float
    end_us: float


class RankTime(NamedTuple):
    """Where one rank's step goes: its four parts add up to ``step_us``.

    Attributes:
        start_us: of its step, after the first rank's.
        step_us: from there to the end of its last task.
        busy_us: computing: kernels and copies on a GPU, the threads of a CPU.
        waiting_us: for other ranks at collectives, and not busy.
        communicating_us: in collectives that all its ranks have reached, or not joined, and neither busy nor waiting.
        idle_us: nothing of these.
    """

    rank: int
    device_name: str
    start_us: float
    step_us: float
    busy_us: float
    waiting_us: float
    communicating_us: float
    idle_us: float


class PathTask(NamedTuple):
    """A task on the critical path; ``task`` is None where it is none of a trace: a late start, or a meeting."""

    rank: int
    task: int | None
    span: Span


@dataclass(frozen=True, slots=True)
class GlobalReplay:
    """A replayed global graph.

    Attributes:
        replay: with spans in the order of the graph's tasks; those of arrivals last until the transfer begins.
        ranks: in the order of the graph's.
        collectives: joined ones, in the order of the graph's.
        critical_path: from the start to the makespan, across ranks.
    """

    replay: GraphReplay
    ranks: list[RankTime]
    collectives: list[CollectiveReplay]
    critical_path: list[PathTask]

    @property
    def makespan_us(self) -> float:
        """Return the end of the last rank, from the start of the first."""
        return self.replay.makespan_us

    @property
    def step_us(self) -> float:
        """Return the longest of the ranks' steps."""
        return max(rank.step_us for rank in self.ranks)

    def waited_for_us(self) -> dict[tuple[int, int], float]:
        """Return, by (rank that waits, rank that came last), the sum of waits at collectives."""
        return summed_waits(
            (rank, collective.last_rank, us)
            for collective in self.collectives
            for rank, us in collective.waits_us.items()
        )


def summed_waits(waits: Iterable[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    """Return, by (rank that waits, rank that came last), the sum of waits: such two ranks and microseconds each."""
    sums: dict[tuple[int, int], float] = {}
    for rank, last, us in waits:
        if us > 0.0 and rank != last:
            sums[rank, last] = sums.get((rank, last), 0.0) + us
    return sums


def replay_global(graph: GlobalGraph) -> GlobalReplay:
    """Replay all ranks as early as their tasks and each other allow.

    Raises:
        RecordError: ranks wait for each other in a circle, so their traces are not of one step.
    """
    try:
        replay = replay_graph(graph.tasks)
    except GraphError as error:
        raise RecordError(f"the ranks' collectives do not fit together, {error}; give traces of one step") from None
    spans = list(replay.spans)
    collectives = [_collective(graph, collective, spans) for collective in graph.collectives]
    replay = replace(replay, spans=spans)
    waiting: dict[int, list[Interval]] = {local.rank: [] for local in graph.ranks}
    for collective in graph.collectives:
        for member in collective.members:
            span = spans[graph.arrival(member)]
            waiting[member.rank].append((span.start_us, span.end_us))
    ranks = [
        _rank_time(local, clock.shift_us, [spans[at] for at in graph.positions[local.rank]], waiting[local.rank])
        for local, clock in zip(graph.ranks, graph.clocks, strict=True)
    ]
    path = [PathTask(*graph.owners[at], spans[at]) for at in replay.critical_path]
    return GlobalReplay(replay, ranks, collectives, path)


def _collective(graph: GlobalGraph, collective: JoinedCollective, spans: list[Span]) -> CollectiveReplay:
    """Return a collective's waits, and let the spans of its arrivals last until its transfers begin."""
    arrivals = [graph.arrival(member) for member in collective.members]
    starts = [spans[at].start_us for at in arrivals]
    last = collective.members[starts.index(max(starts))].rank
    waits = {}
    for member, at in zip(collective.members, arrivals, strict=True):
        begin = spans[at + 1].start_us
        waits[member.rank] = begin - spans[at].start_us
        spans[at] = spans[at]._replace(name=f"wait for rank {last}", end_us=begin, category=WAITING)
    start = min(spans[at + 1].start_us for at in arrivals)
    return CollectiveReplay(collective, last, waits, start, max(spans[at + 1].end_us for at in arrivals))


def is_computing(local: LocalGraph, task: TracedTask) -> bool:
    """Return whether a task is what its device computes: on a GPU kernels and copies, on a CPU operators' threads."""
    if local.backend == "cpu":
        return task.kind is TaskKind.HOST and task.operator != NO_OPERATOR
    return task.kind in (TaskKind.KERNEL, TaskKind.COPY)


def _rank_time(local: LocalGraph, start: float, spans: Sequence[Span], waiting: Sequence[Interval]) -> RankTime:
    """Return where a rank's step goes, from the spans of its local graph's tasks and its waits at collectives."""
    busy: list[Interval] = []
    communicating: list[Interval] = []
    end = start
    for task, span in zip(local.tasks, spans, strict=True):
        end = max(end, span.end_us)
        if is_computing(local, task):
            busy.append((span.start_us, span.end_us))
        elif task.kind is TaskKind.COLLECTIVE:
            communicating.append((span.start_us, span.end_us))
    computed = _covered_us(busy)
    waited = _covered_us([*busy, *waiting])
    communicated = _covered_us([*busy, *waiting, *communicating])
    step = end - start
    return RankTime(
        local.rank,
        local.device_name,
        start,
        step,
        computed,
        waited - computed,
        communicated - waited,
        max(0.0, step - communicated),
    )


def _covered_us(intervals: Iterable[Interval]) -> float:
    """Return the time that intervals cover together."""
    covered, end = 0.0, 0.0
    for start, stop in sorted(intervals):
        if stop > end:
            covered += stop - max(start, end)
            end = stop
    return covered
