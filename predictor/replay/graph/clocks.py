"""Clocks of the ranks of one job, compared by the collectives in which they meet.

Every rank stamps its events by its own clock. Two facts of a collective compare these clocks. All ranks end it at about
the same time, so the median difference of their ends estimates how far their clocks are apart. And no rank can end it
before the last one has started, so every collective bounds that difference from both sides; an estimate outside these
bounds is moved to the nearest. Where the recorded clocks are within the scatter of the differences, they are taken as
recorded: ranks of one host share a clock.

Sources: alignment of the ranks' clocks by what one rank can only do after another: dPRO (Hu et al. 2022,
arXiv:2205.02473), whose global dataflow graph QSync (Zhao et al. 2024, arXiv:2407.02327) replays. Bounds on an offset
from events before and after a message: Duda et al. 1987, "Estimating global time in distributed systems".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from math import inf
from statistics import median
from typing import NamedTuple

SIGNIFICANT_SCATTERS = 3.0  # scatters by which an estimate must differ from the recorded clock to be told from it
ROUNDS = 4  # of improving all clocks against each other; two ranks are done after the first


class Meeting(NamedTuple):
    """A collective by the clocks of its ranks; times in microseconds from the start of each rank's own step.

    Attributes:
        waits_for_all: no rank can end it before all have started it; not so where data flows from or to one rank only.
    """

    ranks: tuple[int, ...]
    starts_us: tuple[float, ...]
    ends_us: tuple[float, ...]
    waits_for_all: bool = True


class Clock(NamedTuple):
    """One rank's clock beside that of the first rank.

    Attributes:
        shift_us: when its step starts, in microseconds after the rank that starts first; 0 or more.
        offset_us: what its clock lags behind the first rank's: added to its recorded times, it compares them.
        low_us: the least offset with which no rank ends a collective before this one has started it, or the reverse,
            the other clocks being as estimated; above ``high_us`` where its clock drifts.
        high_us: the largest such offset.
        spread_us: median distance of its ends of collectives from those of the other ranks, once compared.
        meetings: collectives that compared it; 0: its clock is taken as recorded.
    """

    rank: int
    shift_us: float
    offset_us: float
    low_us: float
    high_us: float
    spread_us: float
    meetings: int

    @property
    def is_consistent(self) -> bool:
        """Return whether one offset fits all collectives."""
        return self.low_us <= self.high_us


def compare_clocks(begins_us: Mapping[int, float], meetings: Sequence[Meeting]) -> list[Clock]:
    """Return the clocks of all ranks in the order given.

    Time is linear in the ranks' parts in all meetings.

    Args:
        begins_us: by rank, the start of its step on its recorded clock; the first one is the reference.
        meetings: collectives of two or more of these ranks.
    """
    reference = next(iter(begins_us))
    shifts = {reference: 0.0}
    firm = [meeting for meeting in meetings if meeting.waits_for_all]
    _place(shifts, firm)
    compared = firm
    if len(shifts) < len(begins_us):  # pipeline stages may meet in messages alone
        compared = list(meetings)
        _place(shifts, compared)
    placed = set(shifts)
    for rank, begin in begins_us.items():
        shifts.setdefault(rank, shifts[reference] + begin - begins_us[reference])
    for _ in range(ROUNDS):
        _improve(shifts, compared, reference)
    for _ in range(ROUNDS):
        _keep_within_bounds(shifts, firm, reference)
    recorded = {rank: begin - begins_us[reference] for rank, begin in begins_us.items()}
    if _take_as_recorded(shifts, recorded, compared, firm):
        _keep_within_bounds(shifts, firm, reference)
    return _clocks(shifts, placed, compared, firm, begins_us)


def _clocks(
    shifts: Mapping[int, float],
    placed: set[int],
    compared: Sequence[Meeting],
    firm: Sequence[Meeting],
    begins_us: Mapping[int, float],
) -> list[Clock]:
    reference = next(iter(begins_us))
    distances = _distances(shifts, compared)
    bounds = _bounds(shifts, firm)
    earliest = min(shifts.values())
    clocks = []
    for rank, begin in begins_us.items():
        recorded = begin - begins_us[reference]
        low, high = bounds.get(rank, (-inf, inf))
        offset = shifts[rank] - recorded
        if rank == reference:
            low, high = 0.0, 0.0
        else:
            low, high = low - recorded, high - recorded
        spread = median(map(abs, distances[rank])) if rank in distances else 0.0
        count = len(distances.get(rank, ())) if rank in placed else 0
        clocks.append(Clock(rank, shifts[rank] - earliest, offset, low, high, spread, count))
    return clocks


def _place(shifts: dict[int, float], meetings: Iterable[Meeting]) -> None:
    """Give every rank that meets a placed one, directly or by others, a first shift."""
    left = list(meetings)
    while True:
        new: defaultdict[int, list[float]] = defaultdict(list)
        later = []
        for meeting in left:
            known = [end + shifts[r] for r, end in zip(meeting.ranks, meeting.ends_us, strict=True) if r in shifts]
            if not known:
                later.append(meeting)
                continue
            common = median(known)
            for rank, end in zip(meeting.ranks, meeting.ends_us, strict=True):
                if rank not in shifts:
                    new[rank].append(common - end)
        if not new:
            return
        shifts.update({rank: median(values) for rank, values in new.items()})
        left = later


def _distances(shifts: Mapping[int, float], meetings: Iterable[Meeting]) -> dict[int, list[float]]:
    """Return, by rank, how much earlier it ended each collective than the median of its ranks."""
    distances: defaultdict[int, list[float]] = defaultdict(list)
    for meeting in meetings:
        ends = [end + shifts[rank] for rank, end in zip(meeting.ranks, meeting.ends_us, strict=True)]
        common = median(ends)
        for rank, end in zip(meeting.ranks, ends, strict=True):
            distances[rank].append(common - end)
    return distances


def _improve(shifts: dict[int, float], meetings: Sequence[Meeting], reference: int) -> None:
    """Move every clock by the median distance of its ends, then all so that the reference stays."""
    for rank, values in _distances(shifts, meetings).items():
        shifts[rank] += median(values)
    moved = shifts[reference]
    for rank in shifts:
        shifts[rank] -= moved


def _keep_within_bounds(shifts: dict[int, float], meetings: Sequence[Meeting], reference: int) -> None:
    """Move the clocks that are outside their bounds to the nearest, one after the other: each bounds the next."""
    for rank, (low, high) in _bounds(shifts, meetings).items():
        if rank != reference and not low <= shifts[rank] <= high:
            low, high = _bounds(shifts, [meeting for meeting in meetings if rank in meeting.ranks])[rank]
            if low <= high:
                shifts[rank] = min(max(shifts[rank], low), high)


def _take_as_recorded(
    shifts: dict[int, float], recorded: Mapping[int, float], compared: Sequence[Meeting], firm: Sequence[Meeting]
) -> bool:
    """Take the recorded shifts of clocks whose estimate cannot tell them from the recorded; tell whether there are any.

    Distances are from the median of a collective's ends, so between two ranks they scatter twice as far.
    """
    bounds = _bounds(shifts, firm)
    taken = {}
    for rank, values in _distances(shifts, compared).items():
        low, high = bounds.get(rank, (-inf, inf))
        scatter = SIGNIFICANT_SCATTERS * 2.0 * median(map(abs, values))
        if low <= recorded[rank] <= high and 0.0 < abs(shifts[rank] - recorded[rank]) <= scatter:
            taken[rank] = recorded[rank]
    shifts.update(taken)
    return bool(taken)


def _bounds(shifts: Mapping[int, float], meetings: Iterable[Meeting]) -> dict[int, tuple[float, float]]:
    """Return, by rank, the least and the largest shift that the order of starts and ends allows."""
    bounds: dict[int, tuple[float, float]] = {}
    for ranks, starts_us, ends_us, _ in meetings:
        starts = [start + shifts[rank] for rank, start in zip(ranks, starts_us, strict=True)]
        ends = [end + shifts[rank] for rank, end in zip(ranks, ends_us, strict=True)]
        last, second_last = nlargest(2, starts)
        first, second = nsmallest(2, ends)
        for position, rank in enumerate(ranks):
            others_last = second_last if starts[position] == last else last
            others_first = second if ends[position] == first else first
            low, high = bounds.get(rank, (-inf, inf))
            bounds[rank] = max(low, others_last - ends_us[position]), min(high, others_first - starts_us[position])
    return bounds
