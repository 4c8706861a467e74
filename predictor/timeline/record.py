"""When every slot and every message of a replay starts and ends, for a trace and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from predictor.timeline.order import (
    COMPUTE,
    NONE,
    SEND,
    Event,
    Instruction,
    meeting_order,
    stage_program,
    waiting_order,
)
from predictor.timeline.replay import PerChunk, replay
from predictor.timeline.schedules import Pass, Schedule, Slot


class SlotTime(NamedTuple):
    """One slot of one stage."""

    stage: int
    kind: Pass
    micro_batch: int
    chunk: int
    start: float
    end: float


class MessageTime(NamedTuple):
    """One message: the activations that a forward slot made, or the gradients of a backward slot."""

    sender: int
    receiver: int
    kind: Pass
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A replay in full, in the unit of its durations.

    Attributes:
        slots: of each stage in the order in which it runs them.
        messages: by their sender's chunk; those that block start when both sides are there.
        finished: when each stage ends its last slot and its last message, as ``Replay`` has it.
    """

    slots: tuple[SlotTime, ...]
    messages: tuple[MessageTime, ...]
    finished: tuple[float, ...]


def record(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    transfer: float,
    blocking: bool = True,
) -> Recording:
    """Time a schedule as ``replay`` does, and keep when everything happened."""
    found = replay(schedule, num_micro_batches, forward, backward, weight, transfer, blocking)
    stages, chunks = len(forward), len(forward[0])
    orders = [schedule.order(stage, stages, num_micro_batches, chunks) for stage in range(stages)]
    if blocking:
        meetings = meeting_order(schedule, stages, num_micro_batches).meetings
        timed = [(one, other, end) for (one, _, other, _), end in zip(meetings, found.ends, strict=True)]
        slots, messages = _meet(orders, (forward, backward), timed)
    else:
        events = waiting_order(schedule, stages, num_micro_batches, chunks)
        slots, messages = _wait(orders, zip(events, found.ends, strict=True), transfer)
    return Recording(tuple(sorted(slots, key=_stage)), tuple(messages), tuple(found.finished))


def _stage(slot: SlotTime) -> int:
    return slot.stage


def _wait(
    orders: Sequence[Sequence[Slot]], timed: Iterable[tuple[Event, float]], transfer: float
) -> tuple[list[SlotTime], list[MessageTime]]:
    """Return all slots and messages of which only the receiver waits."""
    clock = [0.0] * len(orders)
    todo = [iter(order) for order in orders]
    slots: list[SlotTime] = []
    messages: list[MessageTime] = []
    for (stage, _, sender), end in timed:
        start = clock[stage]
        if sender != NONE:
            sent = slots[sender]
            arrival = sent.end + transfer
            messages.append(MessageTime(sent.stage, stage, *sent[1:4], sent.end, arrival))
            start = max(start, arrival)
        slots.append(SlotTime(stage, *next(todo[stage]), start, end))
        clock[stage] = end
    return slots, messages


def _meet(
    orders: Sequence[Sequence[Slot]], durations: tuple[PerChunk, PerChunk], timed: Iterable[tuple[int, int, float]]
) -> tuple[list[SlotTime], list[MessageTime]]:
    """Return all slots and messages that sender and receiver both wait for."""
    clock = [0.0] * len(orders)
    todo = [iter(stage_program(slots, stage, len(orders))) for stage, slots in enumerate(orders)]
    slots: list[SlotTime] = []
    messages: list[MessageTime] = []

    def compute(stage: int) -> Instruction | None:
        """Run a stage up to its next message."""
        for instruction in todo[stage]:
            kind, direction, micro_batch = instruction
            if kind is not COMPUTE:
                return instruction
            start = clock[stage]
            clock[stage] += durations[direction][stage][0]
            slots.append(SlotTime(stage, direction, micro_batch, 0, start, clock[stage]))
        return None

    for one, other, end in timed:
        message, _ = compute(one), compute(other)
        assert message is not None
        kind, direction, micro_batch = message
        sender, receiver = (one, other) if kind is SEND else (other, one)
        start = max(clock[one], clock[other])
        messages.append(MessageTime(sender, receiver, direction, micro_batch, 0, start, max(start, end)))
        clock[one] = clock[other] = max(start, end)
    for stage in range(len(orders)):
        compute(stage)
    return slots, messages
