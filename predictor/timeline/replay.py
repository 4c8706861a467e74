"""Replay any schedule: each stage runs its slots in order and waits for its neighbours' messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub

from predictor.timeline.order import meeting_order
from predictor.timeline.rounds import Round, waiting_order
from predictor.timeline.schedules import Schedule

PerChunk = Sequence[Sequence[float]]
# Stages that differ in how far several rounds take them by less than this part of it advance alike. A later state never
# depends more than one to one on an earlier one, so what is skipped is wrong by no more than this part of itself.
SAME_ADVANCE = 1e-11


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found, in the unit of its durations.

    Attributes:
        finished: when each stage ends its last slot, with its last message sent.
        busy: time each stage computes.
        communicating: time each stage spends in transfers that its computing waits for, neighbours' lateness aside.
    """

    finished: list[float]
    busy: list[float]
    communicating: list[float]

    @property
    def makespan(self) -> float:
        """Return when the last stage to finish is done."""
        return max(self.finished)


def replay(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    message: float,
    blocking: bool = True,
) -> Replay:
    """Time a schedule.

    Args:
        schedule: orders the slots of one stage.
        num_micro_batches: per step.
        forward: duration of a forward slot, per stage and chunk.
        backward: duration of a backward slot, per stage and chunk; all of it where the schedule does not split it.
        weight: duration of a weight-gradient slot, per stage and chunk; empty where the schedule has none.
        message: duration of one message between neighbouring stages.
        blocking: sender and receiver both wait until a message is over; otherwise it leaves as soon as it is made, only
            its receiver waits, and several may be on their way at once.
    """
    assert bool(weight) == schedule.splits_backward
    stages = len(forward)
    busy = [num_micro_batches * (sum(f) + sum(b)) for f, b in zip(forward, backward, strict=True)]
    if weight:
        busy = [work + num_micro_batches * sum(one) for work, one in zip(busy, weight, strict=True)]
    if blocking:
        finished = _meet(schedule, num_micro_batches, forward, backward, message)
        sent = 2 * num_micro_batches * message
        communicating = [sent, *[2 * sent] * (stages - 2), sent] if stages > 1 else [0.0]
    else:
        finished = _wait(schedule, num_micro_batches, forward, backward, weight, message)
        communicating = [0.0] * stages
    if stages == 1:
        busy = finished[:]  # a single stage never waits, not by the last bit either
    return Replay(finished, busy, communicating)


def _meet(
    schedule: Schedule, num_micro_batches: int, forward: PerChunk, backward: PerChunk, message: float
) -> list[float]:
    """Return when stages finish if sender and receiver both wait until a message is over."""
    order = meeting_order(schedule, len(forward), num_micro_batches)
    works = [forwards * forward[s][0] + backwards * backward[s][0] for s, forwards, backwards in order.works]
    clock = [0.0] * len(forward)
    for one, before_one, other, before_other in order.meetings:
        mine, theirs = clock[one] + works[before_one], clock[other] + works[before_other]
        clock[one] = clock[other] = (mine if mine > theirs else theirs) + message
    return [end + works[tail] for end, tail in zip(clock, order.tails, strict=True)]


def _wait(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    message: float,
) -> list[float]:
    """Return when stages finish if only a message's receiver waits for it."""
    order = waiting_order(schedule, len(forward), num_micro_batches, len(forward[0]))
    durations = [duration for stage in (*forward, *backward, *weight) for duration in stage]
    clock = [0.0] * len(forward)
    ends: list[float] = []
    for events, times in order.rounds:
        if times == 1:
            _run(events, durations, message, clock, ends)
        else:
            _repeat(events, times, order.reach, durations, message, clock, ends)
    return clock


def _run(events: Round, durations: list[float], message: float, clock: list[float], ends: list[float]) -> None:
    """Run a round from the stages' clocks on, and append when each of its slots ended."""
    ended = ends.append
    for stage, which, sender in events:
        start = clock[stage]
        if sender:
            arrived = ends[sender] + message
            if arrived > start:
                start = arrived
        clock[stage] = end = start + durations[which]
        ended(end)


def _repeat(
    events: Round,
    times: int,
    reach: int,
    durations: list[float],
    message: float,
    clock: list[float],
    ends: list[float],
) -> None:
    """Run a round so many times, of which those are skipped that only add the same time to everything.

    The state behind a round, all clocks and the ends that later slots look back at, decides all that follows, and what
    adds one time to all of it adds that time to all that follows. So once a state is an earlier one plus a constant,
    every as many rounds add it again: in max-plus algebra the state has reached its eigenvalue, as it does after
    finitely many rounds (Baccelli et al. 1992, Synchronization and Linearity, section 3.7). The earlier state is that
    of the last power of two of rounds, which finds a cycle of any length (Brent 1980, BIT 20, section 3).
    """
    done, compared_at = 0, 1
    earlier: list[float] = []
    while done < times:
        _run(events, durations, message, clock, ends)
        done += 1
        del ends[:-reach]
        if len(earlier) == len(clock) + len(ends) and _advance_alike(clock, earlier):
            advances = list(map(sub, [*clock, *ends], earlier))
            least, most = min(advances), max(advances)
            cycle = done - compared_at
            if most - least <= SAME_ADVANCE * most and times - done >= cycle:
                skipped = (times - done) // cycle
                ahead = skipped * (least + most) / 2
                clock[:] = [time + ahead for time in clock]
                ends[:] = [time + ahead for time in ends]
                done += skipped * cycle
                earlier = []
                continue
        if done == 2 * compared_at or done == 1:
            compared_at, earlier = done, [*clock, *ends]


def _advance_alike(clock: list[float], earlier: list[float]) -> bool:
    """Return whether the first and the last stage are the same time ahead of an earlier state: quick, and rare."""
    last = len(clock) - 1
    first_ahead, last_ahead = clock[0] - earlier[0], clock[last] - earlier[last]
    return abs(first_ahead - last_ahead) <= SAME_ADVANCE * max(first_ahead, last_ahead)
