"""One replay times every schedule: each stage runs its slots in order, neighbours exchange what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from predictor.timeline.schedules import Schedule, Slot


class Kind(IntEnum):
    """What a stage does next."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2


Instruction = tuple[Kind, bool, int]
Message = tuple[int, bool, int]
# What happens, on which stage, and what else it concerns: MEET's neighbour, the number of SEND's and RECEIVE's message.
Event = tuple[int, int, int]
FORWARD, BACKWARD, MEET, SEND, RECEIVE = range(5)


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


def stage_program(slots: Sequence[Slot], stage: int, num_stages: int) -> list[Instruction]:
    """Return a stage's slots with its messages between them.

    What a slot makes is sent before the next slot starts. In 1F1B's steady state a stage first receives the gradient of
    its next backward pass and then sends the activation that it has just made, so that neighbours pair up.

    Source of the order: DeepSpeed ``runtime/pipe/schedule.py``, ``TrainSchedule.steps``.
    """
    is_first, is_last = stage == 0, stage == num_stages - 1
    in_flight = num_stages - stage - 1
    program: list[Instruction] = []
    pending: Instruction | None = None
    for is_forward, micro_batch in slots:
        receives = not (is_first if is_forward else is_last)
        receive = (Kind.RECEIVE, is_forward, micro_batch)
        gradient_first = pending is not None and pending[1] and not is_forward and pending[2] - micro_batch == in_flight
        if receives and gradient_first:
            program.append(receive)
        if pending is not None:
            program.append(pending)
        if receives and not gradient_first:
            program.append(receive)
        program.append((Kind.COMPUTE, is_forward, micro_batch))
        sends = not (is_last if is_forward else is_first)
        pending = (Kind.SEND, is_forward, micro_batch) if sends else None
    return [*program, pending] if pending is not None else program


def _other_end(program: list[Instruction], position: int, instruction: Instruction) -> bool:
    """Return whether a neighbour stands at the other end of a message."""
    if position == len(program):
        return False
    kind, *message = program[position]
    return kind not in (Kind.COMPUTE, instruction[0]) and tuple(message) == instruction[1:]


@lru_cache(maxsize=32)
def order(schedule: Schedule, num_stages: int, num_micro_batches: int, blocking: bool) -> list[Event]:
    """Return everything that happens on all stages, each after what it waits for.

    Programs decide who waits for whom, durations only how long, so one order serves every replay of a schedule: the
    point estimate, both ends of its interval, and most of a search.
    """
    programs = [stage_program(schedule(s, num_stages, num_micro_batches), s, num_stages) for s in range(num_stages)]
    position = [0] * num_stages
    sent: dict[Message, int] = {}
    events: list[Event] = []
    ready = list(range(num_stages))
    while ready:
        stage = ready.pop()
        while position[stage] < len(programs[stage]):
            instruction = programs[stage][position[stage]]
            kind, is_forward, micro_batch = instruction
            link = stage if (kind is Kind.SEND) == is_forward else stage - 1
            peer = link + 1 if link == stage else link
            message = (link, is_forward, micro_batch)
            if kind is Kind.COMPUTE:
                events.append((FORWARD if is_forward else BACKWARD, stage, 0))
            elif blocking:
                if not _other_end(programs[peer], position[peer], instruction):
                    break
                events.append((MEET, stage, peer))
                position[peer] += 1
                ready.append(peer)
            elif kind is Kind.SEND:
                sent[message] = len(sent)
                events.append((SEND, stage, sent[message]))
                ready.append(peer)
            elif message in sent:
                events.append((RECEIVE, stage, sent[message]))
            else:
                break
            position[stage] += 1
    assert all(p == len(program) for p, program in zip(position, programs, strict=True)), "the schedule deadlocks"
    return events


def replay(
    schedule: Schedule,
    num_micro_batches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float,
    blocking: bool = True,
) -> Replay:
    """Time a schedule.

    Args:
        schedule: orders the slots of one stage.
        num_micro_batches: per step.
        forward: duration of a forward slot, per stage.
        backward: duration of a backward slot, per stage.
        transfer: duration of one message between neighbouring stages.
        blocking: sender and receiver both wait until a message is over; otherwise only the receiver does.
    """
    stages = len(forward)
    clock, busy, communicating = [0.0] * stages, [0.0] * stages, [0.0] * stages
    offered: list[float] = []
    for event, stage, other in order(schedule, stages, num_micro_batches, blocking):
        if event <= BACKWARD:
            duration = backward[stage] if event else forward[stage]
            clock[stage] += duration
            busy[stage] += duration
        elif event == MEET:
            mine, theirs = clock[stage], clock[other]
            clock[stage] = clock[other] = (mine if mine > theirs else theirs) + transfer
            communicating[stage] += transfer
            communicating[other] += transfer
        elif event == SEND:
            offered.append(clock[stage])
        else:
            clock[stage] = max(clock[stage], offered[other] + transfer)
    return Replay(clock, busy, communicating)
