"""A pipeline's step as a dependency graph: the slots of every stage and the messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from predictor.core.timeline.graph import GraphTask
from predictor.core.timeline.order import COMPUTE, SEND, stage_program
from predictor.core.timeline.replay import PerChunk
from predictor.core.timeline.schedules import BACKWARD, FORWARD, WEIGHT, Pass, Schedule, Slot

PASS_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient"}
MESSAGE_NAMES = {FORWARD: "activations", BACKWARD: "gradients"}
Place = tuple[Pass, int, int]  # pass, virtual stage, micro-batch


class Stream(StrEnum):
    """A stream of a stage, in the order in which a trace shows them."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    SEND = "pipeline send"
    RECEIVE = "pipeline receive"
    REDUCTION = "data-parallel traffic"
    OPTIMIZER = "optimizer"


def pipeline_tasks(
    schedule: Schedule,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    message: float,
    blocking: bool = True,
) -> list[GraphTask]:
    """Return every slot, stage by stage, and behind them every message as a send and a receive of equal times.

    A slot waits for the message that it needs. Messages that block wait for what both of their stages do before, and
    what these do next waits for the message. Arguments as ``replay`` takes them.
    """
    num_stages, num_chunks = len(forward), len(forward[0])
    orders = [schedule.order(stage, num_stages, num_micro_batches, num_chunks) for stage in range(num_stages)]
    slots = [
        ((slot.kind, schedule.virtual_stage(stage, slot.chunk, num_stages), slot.micro_batch), stage, slot)
        for stage, order in enumerate(orders)
        for slot in order
    ]
    positions = {place: position for position, (place, _, _) in enumerate(slots)}
    holders = [schedule.holder(at, num_stages) for at in range(num_stages * num_chunks)]
    senders = [place for place, stage, _ in slots if _receiver(place, holders) not in (None, stage)]
    sends = {place: len(slots) + 2 * number for number, place in enumerate(senders)}
    receives = {_next(place, num_stages * num_chunks): send + 1 for place, send in sends.items()}
    if blocking:
        after = _after_meetings(orders, positions, sends, receives)
    else:
        after = {positions[place]: (receive,) for place, receive in receives.items() if place is not None}
        leaving = _leaving(schedule, orders)
        for place, send in sends.items():
            position = positions[place]
            after[send] = after[send + 1] = (leaving.get(position, position),)
    durations = (forward, backward, weight)
    tasks = [
        _slot_task(stage, slot, durations[slot.kind][stage][slot.chunk], after.get(position, ()), num_chunks)
        for position, (_, stage, slot) in enumerate(slots)
    ]
    for place, send in sends.items():
        tasks += _message_tasks(place, message, (after[send], after[send + 1]), holders, num_chunks)
    return tasks


def _leaving(schedule: Schedule, orders: Sequence[Sequence[Slot]]) -> dict[int, int]:
    """Return the slots whose results leave with those of a later slot, each with that slot; by their positions."""
    leaving: dict[int, int] = {}
    first = 0
    for stage, order in enumerate(orders):
        later = schedule.delayed_sends(order, stage, len(orders))
        leaving |= {first + at: first + with_ for at, with_ in later.items()}
        first += len(order)
    return leaving


def starts_of_slot(tasks: Sequence[GraphTask], slot: int) -> tuple[int, ...]:
    """Return the predecessors of a slot, its stage's previous slot included: a task after them starts with the slot."""
    after = tasks[slot].after
    return (slot - 1, *after) if slot and tasks[slot - 1].rank == tasks[slot].rank else after


def _next(place: Place, num_virtual_stages: int) -> Place | None:
    """Return the slot that waits for what a slot makes, or None for one that sends nothing."""
    kind, virtual_stage, micro_batch = place
    if kind is FORWARD and virtual_stage < num_virtual_stages - 1:
        return kind, virtual_stage + 1, micro_batch
    if kind is BACKWARD and virtual_stage > 0:
        return kind, virtual_stage - 1, micro_batch
    return None


def _receiver(place: Place, holders: Sequence[tuple[int, int]]) -> int | None:
    """Return the stage that waits for what a slot makes; None for a slot that sends nothing."""
    following = _next(place, len(holders))
    return None if following is None else holders[following[1]][0]


def _after_meetings(
    orders: list[list[Slot]],
    positions: dict[Place, int],
    sends: dict[Place, int],
    receives: dict[Place | None, int],
) -> dict[int, tuple[int, ...]]:
    """Return what every task waits for where sender and receiver both wait until a message is over."""
    after: dict[int, tuple[int, ...]] = {}
    for stage, order in enumerate(orders):
        previous: tuple[int, ...] = ()
        for kind, direction, micro_batch in stage_program(order, stage, len(orders)):
            place = (direction, stage, micro_batch)
            if kind is COMPUTE:
                position = positions[place]
                after[position] = previous
            else:
                position = sends[place] if kind is SEND else receives[place]
                send = position if kind is SEND else position - 1
                after[send] = after[send + 1] = (*after.get(send, ()), *previous)
            previous = (position,)
    return after


def _slot_task(stage: int, slot: Slot, duration: float, after: tuple[int, ...], num_chunks: int) -> GraphTask:
    name = PASS_NAMES[slot.kind]
    details = {"pass": name, "micro_batch": slot.micro_batch, "chunk": slot.chunk}
    label = _label(name, slot.micro_batch, slot.chunk, num_chunks)
    return GraphTask(label, stage, Stream.COMPUTE, duration, after, category=Stream.COMPUTE, details=details)


def _message_tasks(
    place: Place,
    message: float,
    after: tuple[tuple[int, ...], tuple[int, ...]],
    holders: Sequence[tuple[int, int]],
    num_chunks: int,
) -> list[GraphTask]:
    """Return the send and the receive of what a slot makes; ``holders`` are stage and chunk of every virtual stage."""
    kind, virtual_stage, micro_batch = place
    sender, chunk = holders[virtual_stage]
    receiver, _ = holders[virtual_stage + (1 if kind is FORWARD else -1)]
    details = {"micro_batch": micro_batch, "chunk": chunk, "from_stage": sender, "to_stage": receiver}
    label = _label(MESSAGE_NAMES[kind], micro_batch, chunk, num_chunks)
    return [
        GraphTask(label, stage, stream, message, waits_for, (), False, stream, details)
        for stage, stream, waits_for in ((sender, Stream.SEND, after[0]), (receiver, Stream.RECEIVE, after[1]))
    ]


def _label(name: str, micro_batch: int, chunk: int, num_chunks: int) -> str:
    return f"{name} {micro_batch}, chunk {chunk}" if num_chunks > 1 else f"{name} {micro_batch}"
