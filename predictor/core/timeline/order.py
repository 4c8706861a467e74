"""Slot order of blocking pipelines: the messages, in an order in which sender and receiver can meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, wraps
from math import prod
from typing import Any, TypeVar, cast

from predictor.core.timeline.schedules import BACKWARD, FORWARD, Pass, Schedule, Slot

SMALL, LARGE = 64, 2
LARGE_SLOTS = 20_000

Build = TypeVar("Build", bound=Callable[..., object])


def cached(build: Build) -> Build:
    """Return a function that keeps its last answers; its whole numbers multiply to the slots of an answer."""
    small, large = lru_cache(maxsize=SMALL)(build), lru_cache(maxsize=LARGE)(build)

    @wraps(build)
    def answer(*question: Any) -> object:
        slots = prod(size for size in question if isinstance(size, int))
        return (large if slots > LARGE_SLOTS else small)(*question)

    return cast("Build", answer)


class Kind(IntEnum):
    """An instruction's kind."""

    COMPUTE = 0
    SEND = 1
    RECEIVE = 2


COMPUTE, SEND, RECEIVE = Kind.COMPUTE, Kind.SEND, Kind.RECEIVE
Instruction = tuple[Kind, Pass, int]


@dataclass(frozen=True, slots=True)
class Meetings:
    """All blocking messages of a schedule, each with the work of both stages before it.

    Attributes:
        works: distinct amounts of work as (stage, forward slots, backward slots).
        meetings: (stage, its work since its last message, peer, its work), works by their index.
        tails: every stage's work after its last message.
    """

    works: tuple[tuple[int, int, int], ...]
    meetings: tuple[tuple[int, int, int, int], ...]
    tails: tuple[int, ...]


def stage_program(slots: Sequence[Slot], stage: int, num_stages: int) -> list[Instruction]:
    """Return a stage's slots with its blocking messages between them.

    A slot's message is sent before the next slot starts. In 1F1B's steady state a stage first receives the gradient of
    its next backward pass and then sends the activation of its last forward pass, so that neighbours pair up.

    Source of the order: DeepSpeed ``runtime/pipe/schedule.py``, ``TrainSchedule.steps``.
    """
    first, last = 0, num_stages - 1
    in_flight = num_stages - stage - 1
    program: list[Instruction] = []
    pending: Instruction | None = None
    for kind, micro_batch, _ in slots:
        receives = stage != (first if kind is FORWARD else last)
        receive = (RECEIVE, kind, micro_batch)
        turns = pending is not None and pending[1] is FORWARD and kind is BACKWARD
        gradient_first = turns and pending is not None and pending[2] - micro_batch == in_flight
        if receives and gradient_first:
            program.append(receive)
        if pending is not None:
            program.append(pending)
        if receives and not gradient_first:
            program.append(receive)
        program.append((COMPUTE, kind, micro_batch))
        sends = stage != (last if kind is FORWARD else first)
        pending = (SEND, kind, micro_batch) if sends else None
    return [*program, pending] if pending is not None else program


def _numbered(program: Sequence[Instruction], stage: int, num_micro_batches: int) -> list[int]:
    """Return a program with messages as numbers that are the same on both sides, and slots as negative numbers."""
    above, below = 2 * stage * num_micro_batches, 2 * (stage - 1) * num_micro_batches
    numbers = []
    for kind, direction, micro_batch in program:
        if kind is COMPUTE:
            numbers.append(-1 if direction is FORWARD else -2)
        elif direction is FORWARD:
            numbers.append((above if kind is SEND else below) + micro_batch)
        else:
            numbers.append((below if kind is SEND else above) + num_micro_batches + micro_batch)
    return numbers


def _meetings(programs: Sequence[list[int]], num_micro_batches: int) -> Meetings:
    """Return the messages of all stages in an order in which both sides have done their work before."""
    stages = range(len(programs))
    position = [0 for _ in stages]
    slots = ([0 for _ in stages], [0 for _ in stages])
    works: dict[tuple[int, int, int], int] = {}

    def work(stage: int) -> int:
        key = (stage, slots[FORWARD][stage], slots[BACKWARD][stage])
        slots[FORWARD][stage] = slots[BACKWARD][stage] = 0
        return works.setdefault(key, len(works))

    meetings = []
    ready = list(stages)
    while ready:
        stage = ready.pop()
        program, at = programs[stage], position[stage]
        while at < len(program):
            number = program[at]
            if number < 0:
                slots[~number][stage] += 1
            else:
                link = number // (2 * num_micro_batches)
                peer = link + 1 if link == stage else link
                if position[peer] == len(programs[peer]) or programs[peer][position[peer]] != number:
                    break
                meetings.append((stage, work(stage), peer, work(peer)))
                position[peer] += 1
                ready.append(peer)
            at += 1
        position[stage] = at
    assert position == [len(program) for program in programs], "the schedule deadlocks"
    tails = tuple(work(stage) for stage in stages)
    return Meetings(tuple(works), tuple(meetings), tails)


def slot_orders(schedule: Schedule, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[list[Slot]]:
    """Return every stage's slots, checked: every pass of every micro-batch and chunk once, in an order that can run."""
    orders = [schedule.order(stage, num_stages, num_micro_batches, num_chunks) for stage in range(num_stages)]
    for slots in orders:
        done = [0] * (num_micro_batches * num_chunks)
        for kind, micro_batch, chunk in slots:
            assert 0 <= micro_batch < num_micro_batches and 0 <= chunk < num_chunks, "a slot has no such micro-batch"  # noqa: PT018
            at = chunk * num_micro_batches + micro_batch
            assert done[at] == kind, "a slot runs twice, or before what it is made from"
            done[at] += 1
        assert done.count(len(schedule.passes)) == len(done), "a slot is missing"
    return orders


# The order does not depend on durations, so point estimate, both ends of its interval and most of a search share it.
@cached
def meeting_order(schedule: Schedule, num_stages: int, num_micro_batches: int) -> Meetings:
    """Return all messages of all stages, which sender and receiver both wait for."""
    assert schedule.may_block, f"{schedule.name} has no messages that block"
    programs = [
        _numbered(stage_program(slots, stage, num_stages), stage, num_micro_batches)
        for stage, slots in enumerate(slot_orders(schedule, num_stages, num_micro_batches, 1))
    ]
    return _meetings(programs, num_micro_batches)
