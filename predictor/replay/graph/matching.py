"""Matched collectives: which call of one rank is which call of the others.

All ranks of a process group run the same collectives in the same order, so the order within the group matches them, and
name and size check it. A send and a receive match by their order between the two ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from predictor.core.base.words import counted
from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.local_graph import NO_OPERATOR, Collective, LocalGraph

MESSAGES = frozenset({"send", "recv"})
MESSAGE = "send_recv"  # the two of them: matched, or in one kernel
# Data flows from or to one rank, so the others need not wait for each other.
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
# Every rank passes the same size. Not so of all_to_all and of the rooted ones that gather or scatter.
EQUAL_SIZES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})


class Channel(NamedTuple):
    """Ranks among which calls are matched by their order.

    Attributes:
        group: name of their process group; empty where the traces do not say.
        ranks: of the group, or sender and receiver; () where the traces do not say.
        is_message: a sender and its receiver.
    """

    group: str
    ranks: tuple[int, ...]
    is_message: bool = False

    @property
    def label(self) -> str:
        """Return what a message calls it."""
        if self.is_message:
            return f"messages from rank {self.ranks[0]} to rank {self.ranks[1]}"
        return f"group {self.group}" if self.group else "the process group"


class Call(NamedTuple):
    """One rank's part in a collective."""

    rank: int
    collective: Collective


class Matching(NamedTuple):
    """Collectives with the calls of all their ranks, and what could not be matched, one line each."""

    calls: list[tuple[Call, ...]]
    notes: list[str]


Sequences = dict[int, list[Collective]]


def match_collectives(locals_: Sequence[LocalGraph], *, sizes_agree: bool = True) -> Matching:
    """Match the collectives of all ranks.

    Where the steps of two ranks are cut at different collectives, the longest run that both have is matched.

    Args:
        locals_: one graph a rank, of different ranks.
        sizes_agree: of a collective on all its ranks; not so where ranks compute in different precisions.

    Raises:
        RecordError: two ranks of a group run different collectives.
    """
    by_rank = {local.rank: local for local in locals_}
    notes: list[str] = []
    calls: list[tuple[Call, ...]] = []
    for channel, sequences in _channels(by_rank, notes).items():
        absent = sorted(set(channel.ranks) - set(by_rank))
        if absent and not channel.is_message:
            notes.append(
                f"{channel.label} has no trace of {_ranks(absent)}: waiting for them stays inside its transfers"
            )
        if len(sequences) < 2:
            (rank,) = sequences
            notes.append(
                f"{channel.label}: {len(sequences[rank])} calls of rank {rank} alone; they keep their measured time, "
                "in which waiting for other ranks is inside"
            )
            continue
        calls += _matched(channel, sequences, by_rank, sizes_agree, notes)
    return Matching(calls, notes)


def waits_for_all(name: str) -> bool:
    """Return whether no rank can end a collective before all have started it."""
    plain = name.lstrip("_")
    return plain not in MESSAGES and not plain.startswith(tuple(ROOTED))


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:6]))
    more = f" and {len(ranks) - 6} more" if len(ranks) > 6 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _channels(by_rank: Mapping[int, LocalGraph], notes: list[str]) -> dict[Channel, Sequences]:
    known = {
        Channel(collective.group, tuple(sorted(collective.group_ranks)))
        for local in by_rank.values()
        for collective in local.collectives
        if collective.group_ranks
    }
    channels: defaultdict[Channel, Sequences] = defaultdict(dict)
    for rank, local in by_rank.items():
        without_peer = 0
        beside: Counter[str] = Counter()
        for collective in _as_given(local):
            if collective.library:
                beside[collective.library] += 1
                continue
            channel = _group(rank, collective, known)
            if collective.name in (*MESSAGES, MESSAGE):
                peer = _peer(rank, collective, channel, by_rank)
                if peer is None:
                    without_peer += 1
                    continue
                ordered = collective.name == "send" or (collective.name == MESSAGE and rank < peer)
                pair = (rank, peer) if ordered else (peer, rank)
                channel = Channel(channel.group, pair, is_message=collective.name != MESSAGE)
            channels[channel].setdefault(rank, []).append(collective)
        notes += [
            f"rank {rank}: {counted(calls, 'call')} of {library}, whose group the trace does not name: they keep their "
            "measured time, in which waiting for other ranks is inside"
            for library, calls in beside.items()
        ]
        if without_peer:
            notes.append(
                f"rank {rank}: the trace does not say with whom it exchanges {without_peer} messages; they keep their "
                "measured time, in which waiting is inside"
            )
    return channels


def _as_given(local: LocalGraph) -> list[Collective]:
    """Return collectives in the order in which their operators gave them, where that is known of all.

    Threads that run them, such as those of gloo, may begin two in another order on each rank.
    """
    givers = [local.tasks[collective.task].operator for collective in local.collectives]
    if NO_OPERATOR in givers:
        return list(local.collectives)
    return [local.collectives[at] for at in sorted(range(len(givers)), key=givers.__getitem__)]


def _group(rank: int, collective: Collective, known: Iterable[Channel]) -> Channel:
    if collective.group_ranks:
        return Channel(collective.group, tuple(sorted(collective.group_ranks)))
    same = [channel for channel in known if channel.group == collective.group and rank in channel.ranks]
    return same[0] if len(same) == 1 else Channel(collective.group, ())


def _peer(rank: int, collective: Collective, group: Channel, ranks: Iterable[int]) -> int | None:
    """Return the other rank of a message; None where the trace does not say."""
    if collective.peer >= 0:
        return collective.peer
    others = [other for other in group.ranks or ranks if other != rank]
    return others[0] if len(others) == 1 else None


def _matched(
    channel: Channel,
    sequences: Sequences,
    by_rank: Mapping[int, LocalGraph],
    sizes_agree: bool,
    notes: list[str],
) -> Iterator[tuple[Call, ...]]:
    longest = max(sequences, key=lambda rank: len(sequences[rank]))
    firsts = {longest: 0}
    for rank in sequences:
        if rank != longest:
            pair = _Pair(by_rank[longest], by_rank[rank], sequences[longest], sequences[rank])
            firsts[rank] = pair.shift(channel, sizes_agree)
    begin = max(firsts.values())
    end = min(first + len(sequences[rank]) for rank, first in firsts.items())
    if end <= begin:
        raise RecordError(
            f"{channel.label}: no collective is in the steps of all of {_ranks(sorted(sequences))}; "
            "give the traces of one step of one job"
        )
    for rank, calls in sequences.items():
        if len(calls) > end - begin:
            notes.append(
                f"{channel.label}: {len(calls) - (end - begin)} of {len(calls)} calls of rank {rank} are at the border "
                "of its step and in no other rank's; they keep their measured time"
            )
    for index in range(begin, end):
        yield tuple(Call(rank, calls[index - firsts[rank]]) for rank, calls in sorted(sequences.items()))


class _Pair(NamedTuple):
    """The calls of two ranks in one channel."""

    one: LocalGraph
    other: LocalGraph
    ones: list[Collective]
    others: list[Collective]

    def shift(self, channel: Channel, sizes_agree: bool) -> int:
        """Return the position of the second rank's first call among the calls of the first rank, who has no fewer.

        Raises:
            RecordError: at no shift do half of the shorter sequence's calls agree.
        """
        most = min(len(self.ones), len(self.others))
        for overlap in range(most, (most - 1) // 2, -1):
            inside = range(len(self.ones) - most + 1)
            shifts = inside if overlap == most else (overlap - most, len(self.ones) - overlap)
            fitting = [shift for shift in shifts if self._differs_at(shift, sizes_agree) is None]
            if fitting:
                return fitting[0] if len(fitting) == 1 else min(fitting, key=self._distance_us)
        at = self._differs_at(0, sizes_agree)
        assert at is not None, "with no shift at all the calls agree"
        raise RecordError(
            f"{channel.label}: call {at} is {_told(self.ones[at])} on rank {self.one.rank} and "
            f"{_told(self.others[at])} on rank {self.other.rank}; all ranks of a group run the same collectives: "
            "give the traces of one step of one job"
        )

    def _overlapping(self, shift: int) -> Iterator[tuple[Collective, Collective]]:
        return zip(self.ones[max(0, shift) :], self.others[max(0, -shift) :], strict=False)

    def _differs_at(self, shift: int, sizes_agree: bool) -> int | None:
        """Return the first overlapping pair that is not one collective; None where all are."""
        for at, (one, other) in enumerate(self._overlapping(shift)):
            if not _agree(one, other, sizes_agree):
                return at
        return None

    def _distance_us(self, shift: int) -> float:
        """Return how far apart the ranks' ends are, by their recorded clocks where these tell of the same time."""
        one, other = self.one, self.other
        recorded = other.begin_us - one.begin_us
        differences = [
            _end_us(other, call) + recorded - _end_us(one, first) for first, call in self._overlapping(shift)
        ]
        if abs(recorded) < max(one.step_us, other.step_us):
            return abs(median(differences))
        return max(differences) - min(differences)


def _end_us(local: LocalGraph, collective: Collective) -> float:
    task = local.tasks[collective.task]
    return task.start_us + task.duration_us


def _agree(one: Collective, other: Collective, sizes_agree: bool) -> bool:
    if one.name in MESSAGES and other.name in MESSAGES:
        is_sized = True
    elif one.name != other.name:
        return False
    else:
        is_sized = one.name in EQUAL_SIZES
    unknown = not one.size_bytes or not other.size_bytes
    return unknown or not is_sized or not sizes_agree or one.size_bytes == other.size_bytes


def _told(collective: Collective) -> str:
    return f"{collective.name} of {collective.size_bytes} bytes" if collective.size_bytes else collective.name
