"""The global dataflow graph of one step: the local graphs of all ranks, joined at their collectives.

A collective is two tasks on each of its ranks: its arrival, which takes no time and waits for nobody else, and its
transfer, which begins when the last rank has arrived and keeps the end that this rank measured. The ranks meet in one
more task, which takes no time either. The transfer's own time is that of the rank that came last, as it waits for
nobody: the shortest of all ranks.

Sources: dPRO (Hu et al. 2022, arXiv:2205.02473) and QSync (Zhao et al. 2024, arXiv:2407.02327).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from predictor.core.base.words import counted
from predictor.core.timeline.graph import GraphTask
from predictor.replay.files.collective_names import KNOWN
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.clocks import Clock, Meeting, compare_clocks
from predictor.replay.graph.local_graph import EdgeKind, LocalGraph
from predictor.replay.graph.local_replay import graph_tasks_of
from predictor.replay.graph.matching import MESSAGE, MESSAGES, Call, match_collectives, waits_for_all

STEP_START = "step start"
MEETING = "meeting"
COLLECTIVE_STREAM = "collectives"  # stream of what takes no time


class Member(NamedTuple):
    """One rank's part in a joined collective.

    Attributes:
        task: position in the tasks of its local graph.
        transfer_us: from the arrival of the last rank that it waits for to its own end.
        waits_for: positions, among the members, of the ranks that must have arrived before its transfer begins.
    """

    rank: int
    task: int
    transfer_us: float
    waits_for: tuple[int, ...]


class JoinedCollective(NamedTuple):
    """One collective of several ranks.

    Attributes:
        size_bytes: as ``Collective.size_bytes``; 0 where unknown.
        ranks: of its process group, traced or not.
        own_us: its time without waiting: the shortest that a rank measured.
    """

    name: str
    group: str
    size_bytes: int
    ranks: int
    members: tuple[Member, ...]
    own_us: float

    @property
    def waits_for_all(self) -> bool:
        """Return whether every member waits for every other one."""
        return all(len(member.waits_for) == len(self.members) for member in self.members)


@dataclass(frozen=True, slots=True)
class GlobalGraph:
    """All ranks' steps as one dependency graph.

    Attributes:
        ranks: the local graphs, by rank.
        clocks: of the ranks, in the same order.
        collectives: those that were joined; others keep their measured time.
        tasks: to be replayed: those of each rank in their order, a joined collective as arrival and transfer; before
            them the start of the step of a rank that starts late, after all of them the meetings.
        positions: by rank, the position in ``tasks`` of each task of its local graph; of a collective, its transfer.
        owners: for each of ``tasks``, rank and position in its local graph; a task of None is no traced one.
        notes: what could not be joined or compared, one line each.
    """

    ranks: Sequence[LocalGraph]
    clocks: Sequence[Clock]
    collectives: Sequence[JoinedCollective]
    tasks: list[GraphTask]
    positions: Mapping[int, Sequence[int]]
    owners: Sequence[tuple[int, int | None]]
    notes: Sequence[str] = ()

    def local(self, rank: int) -> LocalGraph:
        """Return a rank's local graph."""
        return next(local for local in self.ranks if local.rank == rank)

    def position(self, rank: int, task: int) -> int:
        """Return where a task of a rank's local graph ends among the tasks; of a joined collective, its transfer."""
        return self.positions[rank][task]

    def arrival(self, member: Member) -> int:
        """Return the position of a rank's arrival at a joined collective."""
        return self.positions[member.rank][member.task] - 1

    def start(self, rank: int) -> float:
        """Return when a rank's step starts, in microseconds after the first rank's."""
        return next(clock.shift_us for clock in self.clocks if clock.rank == rank)


def global_graph(locals_: Sequence[LocalGraph], *, sizes_agree: bool = True) -> GlobalGraph:
    """Join the local graphs of the ranks of one job, recorded in the same step.

    One rank alone keeps its collectives as measured, with a note.

    Args:
        locals_: any of the job's ranks; ranks without a number are counted in the order given.
        sizes_agree: of a collective on all its ranks; not so where ranks compute in different precisions.

    Raises:
        RecordError: there is no rank, two are of one number, or they run different collectives.
    """
    ranks, notes = _numbered(locals_)
    notes += [*_step_notes(ranks), *_unknown_notes(ranks)]
    by_rank = {local.rank: local for local in ranks}
    calls, unmatched = match_collectives(ranks, sizes_agree=sizes_agree)
    meetings = [_meeting(call, by_rank) for call in calls]
    clocks = compare_clocks({local.rank: local.begin_us for local in ranks}, meetings)
    notes += [*unmatched, *_clock_notes(clocks)]
    shifts = {clock.rank: clock.shift_us for clock in clocks}
    collectives = [_joined(call, meeting, shifts) for call, meeting in zip(calls, meetings, strict=True)]
    return join(ranks, clocks, collectives, notes)


def with_locals(graph: GlobalGraph, locals_: Sequence[LocalGraph]) -> GlobalGraph:
    """Return the graph with changed local graphs of the same ranks, whose tasks are as many and in the same order.

    Clocks and transfers stay as measured.
    """
    return join(locals_, graph.clocks, graph.collectives, graph.notes)


def join(
    ranks: Sequence[LocalGraph],
    clocks: Sequence[Clock],
    collectives: Sequence[JoinedCollective],
    notes: Sequence[str] = (),
) -> GlobalGraph:
    """Return the graph of ranks whose clocks and collectives are known."""
    joined: dict[int, dict[int, float]] = {local.rank: {} for local in ranks}
    for collective in collectives:
        for member in collective.members:
            joined[member.rank][member.task] = member.transfer_us
    tasks: list[GraphTask] = []
    owners: list[tuple[int, int | None]] = []
    positions = {}
    for local, clock in zip(ranks, clocks, strict=True):
        start: tuple[int, ...] = ()
        if clock.shift_us > 0.0:
            start = (len(tasks),)
            wait = GraphTask(
                STEP_START, local.rank, COLLECTIVE_STREAM, clock.shift_us, is_exclusive=False, category=STEP_START
            )
            tasks.append(wait)
            owners.append((local.rank, None))
        transfers = joined[local.rank]
        ends, at = [], len(tasks)
        for task in range(len(local.tasks)):
            at += 2 if task in transfers else 1
            ends.append(at - 1)
        positions[local.rank] = ends
        tasks += _rank_tasks(local, transfers, ends, start)
        owners += [(local.rank, at) for at in range(len(ends)) for _ in range(2 if at in transfers else 1)]
    for collective in collectives:
        _meet(collective, tasks, positions)
        owners += [(collective.members[0].rank, None)] * (len(tasks) - len(owners))
    return GlobalGraph(ranks, clocks, collectives, tasks, positions, owners, tuple(notes))


def _rank_tasks(
    local: LocalGraph, transfers: Mapping[int, float], ends: Sequence[int], start: tuple[int, ...]
) -> Iterator[GraphTask]:
    """Yield a rank's tasks, with positions in the global graph.

    Args:
        local: its graph.
        transfers: duration of the transfer of each joined collective.
        ends: position of each task in the global graph.
        start: position of the start of its step; () where it starts first.
    """
    occupied: set[str] = set()
    buckets = waits_for_buckets(local)
    for at, task in enumerate(graph_tasks_of(local)):
        after, lags = tuple([ends[before] for before in task.after]), task.lags_us
        if at in buckets:
            after += tuple([ends[before] for before in buckets[at]])
            lags = (*(lags or (0.0,) * len(task.after)), *(0.0,) * len(buckets[at]))
        if start and not after and (task.stream not in occupied or not task.is_exclusive):
            after, lags = start, ()
        if task.is_exclusive:
            occupied.add(task.stream)
        if at in transfers:
            yield task._replace(rank=local.rank, after=after, lags_us=lags, duration_us=0.0)
            task = task._replace(duration_us=transfers[at])
            after, lags = (ends[at] - 1,), ()
        yield task._replace(rank=local.rank, after=after, lags_us=lags)


def waits_for_buckets(local: LocalGraph) -> dict[int, tuple[int, ...]]:
    """Return, by task that waits for a bucket of gradients, the buckets that it waits for unseen.

    DistributedDataParallel waits for all buckets, and a trace shows that of the last to end. With other times another
    one may be the last (torch/csrc/distributed/c10d/reducer.cpp, ``Reducer::finalize_backward``).
    """
    ends = {
        call.task: local.tasks[call.task].start_us + local.tasks[call.task].duration_us
        for call in local.collectives
        if call.gradients
    }
    waits = {}
    for at, task in enumerate(local.tasks):
        seen = {edge.task for edge in task.after if edge.kind is EdgeKind.SYNC and edge.task in ends}
        if seen and at not in ends:
            last = max(ends[before] for before in seen)
            waits[at] = tuple(before for before, end in ends.items() if before not in seen and end <= last)
    return {at: others for at, others in waits.items() if others}


def _meet(collective: JoinedCollective, tasks: list[GraphTask], positions: Mapping[int, Sequence[int]]) -> None:
    """Let the transfers of a collective begin when those they wait for have arrived."""
    transfers = [positions[member.rank][member.task] for member in collective.members]
    arrivals = tuple(transfer - 1 for transfer in transfers)
    if collective.waits_for_all:  # by one task, as n arrivals before n transfers are n² dependencies
        meeting = len(tasks)
        name = f"{collective.name} {MEETING}"
        first = collective.members[0].rank
        tasks.append(GraphTask(name, first, COLLECTIVE_STREAM, 0.0, arrivals, is_exclusive=False, category=MEETING))
    for member, transfer in zip(collective.members, transfers, strict=True):
        if collective.waits_for_all:
            others: tuple[int, ...] = (meeting,)
        else:
            others = tuple(arrivals[other] for other in member.waits_for if arrivals[other] != transfer - 1)
        tasks[transfer] = tasks[transfer]._replace(after=(transfer - 1, *others))


def _numbered(locals_: Sequence[LocalGraph]) -> tuple[list[LocalGraph], list[str]]:
    """Return the local graphs by rank, and a note where the traces do not say their ranks."""
    if not locals_:
        raise RecordError("there is no trace; a global graph needs the trace of one rank or more")
    numbers = [local.rank for local in locals_]
    if len(set(numbers)) == len(numbers):
        return sorted(locals_, key=lambda local: local.rank), []
    if any(local.world_size > 1 for local in locals_):
        rank = next(number for number in numbers if numbers.count(number) > 1)
        raise RecordError(
            f"{numbers.count(rank)} traces are of rank {rank}; give one trace of each rank, recorded in the same job"
        )
    note = "the traces do not say their ranks; they are counted in the order given"
    return [replace(local, rank=rank, world_size=len(locals_)) for rank, local in enumerate(locals_)], [note]


def _step_notes(ranks: Sequence[LocalGraph]) -> Iterator[str]:
    labels = {local.label for local in ranks}
    if len(labels) > 1:
        yield f"the ranks' steps have different names: {', '.join(sorted(labels))}"
    world = max(local.world_size for local in ranks)
    if len(ranks) < world:
        yield f"{len(ranks)} of {world} ranks have a trace"


def _unknown_notes(ranks: Sequence[LocalGraph]) -> Iterator[str]:
    """Yield every collective whose name is not known, on the rank that is longest in it."""
    us: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for local in ranks:
        for collective in local.collectives:
            if collective.name not in KNOWN:
                us[collective.name][local.rank].append(local.tasks[collective.task].duration_us)
    for name, of_rank in us.items():
        rank = max(of_rank, key=lambda at: sum(of_rank[at]))
        ms = sum(of_rank[rank]) / 1e3
        calls = counted(len(of_rank[rank]), "call")
        yield f"rank {rank}: {name} is an unknown collective: {calls}, {ms:,.3f} ms, counted as other traffic"


def _meeting(calls: Sequence[Call], by_rank: Mapping[int, LocalGraph]) -> Meeting:
    tasks = [by_rank[call.rank].tasks[call.collective.task] for call in calls]
    return Meeting(
        tuple(call.rank for call in calls),
        tuple(task.start_us for task in tasks),
        tuple(task.start_us + task.duration_us for task in tasks),
        waits_for_all(calls[0].collective.name),
    )


def _joined(calls: Sequence[Call], meeting: Meeting, shifts: Mapping[int, float]) -> JoinedCollective:
    """Return a collective with each rank's transfer; one that ends before the last arrival by the clocks takes 0 µs."""
    starts = [start + shifts[rank] for rank, start in zip(meeting.ranks, meeting.starts_us, strict=True)]
    everyone = tuple(range(len(calls)))
    members = []
    for position, (call, end_us) in enumerate(zip(calls, meeting.ends_us, strict=True)):
        end = end_us + shifts[call.rank]
        waits_for = everyone
        if not meeting.waits_for_all:
            receives = call.collective.name == "recv"
            waits_for = tuple(at for at in everyone if at == position or receives or starts[at] <= end)
        last = max(starts[at] for at in waits_for)
        members.append(Member(call.rank, call.collective.task, max(0.0, end - last), waits_for))
    own = min(end - start for start, end in zip(meeting.starts_us, meeting.ends_us, strict=True))
    first = calls[0].collective
    ranks = max(len(calls), *(len(call.collective.group_ranks) for call in calls))
    sizes = max(call.collective.size_bytes for call in calls)
    name = MESSAGE if len(calls) == 2 and first.name in MESSAGES else first.name
    return JoinedCollective(name, first.group, sizes, ranks, tuple(members), own)


def _clock_notes(clocks: Sequence[Clock]) -> list[str]:
    if len(clocks) < 2:
        return []
    reference = clocks[0].rank
    notes = []
    for clock in clocks[1:]:
        if not clock.meetings:
            notes.append(f"rank {clock.rank} meets rank {reference} in no collective: its clock is taken as recorded")
        elif not clock.is_consistent:
            notes.append(
                f"the clock of rank {clock.rank} fits no single offset: one collective needs {clock.low_us:.1f} µs or "
                f"more, another one {clock.high_us:.1f} µs or less; {clock.offset_us:.1f} µs is taken"
            )
    return notes
