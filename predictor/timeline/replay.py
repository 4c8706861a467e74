"""One replay times every schedule: each stage runs its slots in order, neighbours exchange what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.timeline.order import meeting_order, waiting_order
from predictor.timeline.schedules import Schedule

PerChunk = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found, in the unit of its durations.

    Attributes:
        finished: when each stage ends its last slot, with its last message sent.
        busy: time each stage computes.
        communicating: time each stage spends in transfers that its computing waits for, neighbours' lateness aside.
        ends: when each event of the schedule's order ended: slots, or messages where those block.
    """

    finished: list[float]
    busy: list[float]
    communicating: list[float]
    ends: list[float] = field(repr=False, compare=False)

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
    transfer: float,
    blocking: bool = True,
) -> Replay:
    """Time a schedule.

    Args:
        schedule: orders the slots of one stage.
        num_micro_batches: per step.
        forward: duration of a forward slot, per stage and chunk.
        backward: duration of a backward slot, per stage and chunk; all of it where the schedule does not split it.
        weight: duration of a weight-gradient slot, per stage and chunk; empty where the schedule has none.
        transfer: duration of one message between neighbouring stages.
        blocking: sender and receiver both wait until a message is over; otherwise it leaves as soon as it is made, only
            its receiver waits, and several may be on their way at once.
    """
    assert bool(weight) == schedule.splits_backward
    stages = len(forward)
    busy = [num_micro_batches * (sum(f) + sum(b)) for f, b in zip(forward, backward, strict=True)]
    if weight:
        busy = [work + num_micro_batches * sum(one) for work, one in zip(busy, weight, strict=True)]
    if blocking:
        finished, ends = _meet(schedule, num_micro_batches, forward, backward, transfer)
        sent = 2 * num_micro_batches * transfer
        communicating = [sent, *[2 * sent] * (stages - 2), sent] if stages > 1 else [0.0]
    else:
        finished, ends = _wait(schedule, num_micro_batches, forward, backward, weight, transfer)
        communicating = [0.0] * stages
    if stages == 1:
        busy = finished[:]  # a single stage never waits, not by the last bit either
    return Replay(finished, busy, communicating, ends)


def _meet(
    schedule: Schedule, num_micro_batches: int, forward: PerChunk, backward: PerChunk, transfer: float
) -> tuple[list[float], list[float]]:
    """Return when stages finish and messages end that sender and receiver both wait for."""
    order = meeting_order(schedule, len(forward), num_micro_batches)
    works = [forwards * forward[s][0] + backwards * backward[s][0] for s, forwards, backwards in order.works]
    clock = [0.0] * len(forward)
    ends: list[float] = []
    ended = ends.append
    for one, before_one, other, before_other in order.meetings:
        mine, theirs = clock[one] + works[before_one], clock[other] + works[before_other]
        clock[one] = clock[other] = end = (mine if mine > theirs else theirs) + transfer
        ended(end)
    return [end + works[tail] for end, tail in zip(clock, order.tails, strict=True)], ends


def _wait(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    transfer: float,
) -> tuple[list[float], list[float]]:
    """Return when stages finish and slots end if only a message's receiver waits for it."""
    events = waiting_order(schedule, len(forward), num_micro_batches, len(forward[0]))
    durations = [duration for stage in (*forward, *backward, *weight) for duration in stage]
    clock = [0.0] * len(forward)
    ends: list[float] = []
    ended = ends.append
    for stage, which, sender in events:
        start = clock[stage]
        if sender >= 0:
            arrived = ends[sender] + transfer
            if arrived > start:
                start = arrived
        clock[stage] = end = start + durations[which]
        ended(end)
    return clock, ends
