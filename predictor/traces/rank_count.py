"""A measured job on another number of ranks: copies of its local graphs, and collectives that take another time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from predictor.traces.clocks import Clock
from predictor.traces.closed import RecordError
from predictor.traces.global_graph import GlobalGraph, JoinedCollective, Member, join
from predictor.traces.local_graph import LocalGraph
from predictor.traces.matching import MESSAGE, MESSAGES

# Time in µs of a collective by its name, size in bytes as in ``Collective.size_bytes``, and ranks.
CollectiveTime = Callable[[str, int, int], float]
Scale = Callable[[float], float]


def ring_traffic(name: str, size_bytes: int, ranks: int) -> float:
    """Return the bytes that a rank sends in a collective over a ring, as a time at 1 byte per µs.

    Scaled to a measured transfer it tells the time on other ranks over links of the same bandwidth: latency, which also
    grows with the ranks, is left out. A collective of another name sends its size once.

    Args:
        name: of the collective.
        size_bytes: of the operation's larger side, so all ranks' shards of an all-gather or a reduce-scatter.
        ranks: that take part.

    Source: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    >>> ring_traffic("all_reduce", 1000, 4)
    1500.0
    """
    if name == "all_reduce":
        return 2.0 * size_bytes * (ranks - 1) / ranks
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return size_bytes * (ranks - 1) / ranks
    return float(size_bytes)


def with_ranks(
    graph: GlobalGraph,
    ranks: int,
    collective_us: CollectiveTime = ring_traffic,
    *,
    scaled: bool = True,
    groups: Collection[str] | None = None,
    every_rank: bool = True,
) -> GlobalGraph:
    """Return the graph of the same job on another number of ranks.

    Rank r runs the local graph of rank r modulo the measured ranks. Its collectives take the time that it measured,
    times what ``collective_us`` says for the new number of ranks over what it says for the measured one.

    Args:
        graph: of a data-parallel job, all whose ranks do the same work, or of replicas of several ranks.
        ranks: of the new job; a multiple of the measured ranks where a group does not grow.
        collective_us: see ``CollectiveTime``; it is not asked for one rank, which sends nothing.
        scaled: the ratio of its two answers counts; otherwise the new answer itself.
        groups: names of the process groups that grow; None: those that hold all measured ranks.
        every_rank: the graph has all ranks; otherwise no more than were measured, each standing for its copies, which
            take the same times: the same steps for less work.

    Raises:
        RecordError: ``ranks`` is less than 1, or cuts a group that does not grow.
    """
    if ranks < 1:
        raise RecordError(f"the number of ranks is {ranks}; it must be 1 or more")
    measured = len(graph.ranks)
    order = [local.rank for local in graph.ranks]
    collectives = (
        graph.collectives
        if measured > 1
        else [collective for collective in alone(graph.ranks[0]) if collective.name not in MESSAGES]
    )
    grows = [_grows(collective, graph, groups) for collective in collectives]
    if not all(grows) and ranks % measured:
        group = next(collective.group for collective, is_grown in zip(collectives, grows, strict=True) if not is_grown)
        raise RecordError(
            f"the number of ranks is {ranks}; group {group or 'without a name'} does not grow with it, so it must be a "
            f"multiple of the {measured} measured ranks"
        )
    built = ranks if every_rank else min(ranks, measured)
    locals_ = [replace(graph.ranks[rank % measured], rank=rank, world_size=ranks) for rank in range(built)]
    shifts = [graph.clocks[rank % measured].shift_us for rank in range(built)]
    first = min(shifts)
    clocks = [Clock(rank, shift - first, 0.0, 0.0, 0.0, 0.0, 0) for rank, shift in enumerate(shifts)]
    resized: list[JoinedCollective] = []
    for collective, is_grown in zip(collectives, grows, strict=True):
        if is_grown:
            scale = transfer_scale(collective, ranks, collective_us, scaled=scaled)
            resized.append(_grown(collective, built, order, scale)._replace(ranks=ranks))
        else:
            resized += [_moved(collective, block, order) for block in range(0, built, measured)]
    return join(locals_, clocks, resized, [*graph.notes, *_notes(measured, ranks)])


def _grows(collective: JoinedCollective, graph: GlobalGraph, groups: Collection[str] | None) -> bool:
    """Return whether a collective's group takes in the ranks that are added."""
    if groups is not None:
        return collective.group in groups
    if len(graph.ranks) == 1:
        return collective.ranks >= graph.ranks[0].world_size
    return len(collective.members) == len(graph.ranks) and collective.name != MESSAGE


def alone(local: LocalGraph) -> Iterator[JoinedCollective]:
    """Yield the collectives of one rank as if it were the only one, all of their measured time being transfer."""
    for collective in local.collectives:
        us = local.tasks[collective.task].duration_us
        ranks = len(collective.group_ranks) or local.world_size
        member = Member(local.rank, collective.task, us, (0,))
        yield JoinedCollective(collective.name, collective.group, collective.size_bytes, ranks, (member,), us)


def transfer_scale(
    collective: JoinedCollective, ranks: int, collective_us: CollectiveTime, *, scaled: bool = True
) -> Scale:
    """Return how a transfer's time changes from the measured number of ranks to another one.

    Raises:
        RecordError: it was measured on one rank, which no ratio leads away from.
    """
    if ranks == 1:
        return lambda us: 0.0
    size = max(1, collective.size_bytes)
    new = collective_us(collective.name, size, ranks)
    if not scaled:
        return lambda us: new
    old = collective_us(collective.name, size, collective.ranks) if collective.ranks > 1 else 0.0
    if old <= 0.0:
        raise RecordError(
            f"{collective.name} of {collective.size_bytes} bytes was measured on {collective.ranks} ranks, where it "
            f"takes no time to scale to {ranks}; give times in µs and scaled=False"
        )
    return lambda us: us * new / old


def _grown(collective: JoinedCollective, built: int, order: Sequence[int], scale: Scale) -> JoinedCollective:
    """Return a collective of a group that takes in all copies of its ranks.

    Args:
        collective: as measured.
        built: ranks of the new graph.
        order: the measured ranks.
        scale: of its transfers.
    """
    parts = {member.rank: at for at, member in enumerate(collective.members)}
    copies = [(rank, parts.get(order[rank % len(order)])) for rank in range(built)]
    sources = [(rank, part) for rank, part in copies if part is not None]
    of_part: dict[int, list[int]] = {}
    for at, (_, part) in enumerate(sources):
        of_part.setdefault(part, []).append(at)
    members = []
    for at, (rank, part) in enumerate(sources):
        member = collective.members[part]
        others = {copy for other in member.waits_for for copy in of_part.get(other, ())}
        members.append(Member(rank, member.task, scale(member.transfer_us), tuple(sorted(others | {at}))))
    return collective._replace(members=tuple(members), own_us=scale(collective.own_us))


def _moved(collective: JoinedCollective, first: int, order: Sequence[int]) -> JoinedCollective:
    """Return a collective within one copy of the measured ranks, whose own first rank is ``first``."""
    members = [member._replace(rank=first + order.index(member.rank)) for member in collective.members]
    return collective._replace(members=tuple(members))


def _notes(measured: int, ranks: int) -> Iterator[str]:
    if ranks > measured:
        yield f"{measured} measured ranks stand for {ranks}: rank r repeats rank r modulo {measured}"
    if measured == 1:
        yield "one rank alone was measured: its waiting for other ranks counts as transfer"
