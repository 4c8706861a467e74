"""Replay any schedule: each stage runs its slots in order and waits for its neighbours' messages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from predictor.core.timeline.order import meeting_order
from predictor.core.timeline.rounds import Round, waiting_order
from predictor.core.timeline.schedules import Schedule

PerChunk = Sequence[Sequence[float]]
# Relative tolerance within which all stages advance by the same time over a cycle of rounds. A change of a state
# changes later states by no more than itself, so the relative error of the skipped time is no larger.
SAME_ADVANCE = 1e-11


class Replay(NamedTuple):
    """The result of a replay, in the unit of its durations.

    Attributes:
        finished: end of each stage's last slot, its last message included.
        busy: computation of each stage.
        communicating: messages that a stage's computation waits for, without waiting for its neighbours.
    """

    finished: list[float]
    busy: list[float]
    communicating: list[float]

    @property
    def makespan(self) -> float:
        """Return the end of the last stage."""
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
        backward: duration of a backward slot, per stage and chunk; of input gradients only where it is split.
        weight: duration of a weight-gradient slot, per stage and chunk; empty where the schedule has none.
        message: duration of one message between neighbouring stages.
        blocking: sender and receiver both wait until a message is over; otherwise it is sent at the end of its slot,
            only its receiver waits, and several messages may be under way at the same time.
    """
    assert bool(weight) == schedule.splits_backward
    stages = len(forward)
    busy = [num_micro_batches * (sum(f) + sum(b)) for f, b in zip(forward, backward, strict=True)]
    if weight:
        busy = [work + num_micro_batches * sum(w) for work, w in zip(busy, weight, strict=True)]
    if blocking:
        finished = _meet(schedule, num_micro_batches, forward, backward, message)
        sent = 2 * num_micro_batches * message
        communicating = [sent, *[2 * sent] * (stages - 2), sent] if stages > 1 else [0.0]
    else:
        durations = [duration for stage in (*forward, *backward, *weight) for duration in stage]
        finished = _wait(schedule, stages, num_micro_batches, len(forward[0]), durations, message)
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
    for stage, work, peer, peer_work in order.meetings:
        ready, peer_ready = clock[stage] + works[work], clock[peer] + works[peer_work]
        clock[stage] = clock[peer] = (ready if ready > peer_ready else peer_ready) + message
    return [end + works[tail] for end, tail in zip(clock, order.tails, strict=True)]


def _wait(
    schedule: Schedule, stages: int, num_micro_batches: int, chunks: int, durations: list[float], message: float
) -> list[float]:
    """Return when stages finish if only a message's receiver waits for it; durations as ``Event`` indexes them."""
    order = waiting_order(schedule, stages, num_micro_batches, chunks)
    clock = [0.0] * stages
    ends: list[float] = []
    for events, times in order.rounds:
        if times == 1:
            _run(events, durations, message, clock, ends)
        else:
            _repeat(events, times, order.reach, durations, message, clock, ends)
    return clock


def _run(events: Round, durations: list[float], message: float, clock: list[float], ends: list[float]) -> None:
    """Run a round from the stages' clocks on, and append the end of each of its slots."""
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
    """Run a round ``times`` times, but skip cycles of rounds once the pipeline is in a periodic steady state.

    The state after a round (all clocks, and the ends that later slots wait for) determines the rest of the replay, and
    a constant added to the state is added to all later times. So once a state equals an earlier state plus a constant,
    each further cycle of as many rounds adds the same constant: in max-plus algebra the system has reached its periodic
    regime, as it does after finitely many rounds (Baccelli et al. 1992, Synchronization and Linearity, section 3.7).
    The earlier state is that of the last power of two of rounds, which detects cycles of any length (Brent 1980, BIT
    20, section 3).
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
    """Return whether the first and the last stage advanced alike: a cheap test before that of the whole state."""
    last = len(clock) - 1
    first_ahead, last_ahead = clock[0] - earlier[0], clock[last] - earlier[last]
    return abs(first_ahead - last_ahead) <= SAME_ADVANCE * max(first_ahead, last_ahead)
