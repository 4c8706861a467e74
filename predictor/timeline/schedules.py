"""Pipeline schedules: each is one function that orders a stage's slots, without durations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class Pass(IntEnum):
    """A slot's pass; BACKWARD includes the weight gradients where the schedule does not split them off."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


FORWARD, BACKWARD, WEIGHT = Pass.FORWARD, Pass.BACKWARD, Pass.WEIGHT


class Slot(NamedTuple):
    """One micro-batch's pass through one model chunk of one stage."""

    kind: Pass
    micro_batch: int
    chunk: int = 0


# (stage, num_stages, num_micro_batches, num_chunks) → the stage's slots in the order in which it runs them.
SlotOrder = Callable[[int, int, int, int], list[Slot]]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A schedule: the order of a stage's slots, and its properties.

    Attributes:
        order: the slots of one stage.
        splits_backward: the gradients of the input (BACKWARD) and of the weights (WEIGHT) are slots of their own.
        chunks: a stage may hold several model chunks (virtual stages).
        may_block: its messages may make sender and receiver wait for each other.
        has_steady_state: between warm-up and cool-down every stage repeats the same slots with later micro-batches.
        v_shaped: stages hold two chunks, the second ones in reverse: the first stage has the model's both ends.
    """

    name: str
    label: str
    order: SlotOrder
    source: str
    splits_backward: bool = False
    chunks: bool = False
    may_block: bool = True
    has_steady_state: bool = False
    v_shaped: bool = False

    def virtual_stage(self, stage: int, chunk: int, num_stages: int) -> int:
        """Return the place of a stage's chunk in the model, counted from 0."""
        turns = self.v_shaped and chunk % 2
        return chunk * num_stages + (num_stages - 1 - stage if turns else stage)

    def holder(self, virtual_stage: int, num_stages: int) -> tuple[int, int]:
        """Return the stage that holds the chunk at a place in the model, and its number there."""
        chunk, along = divmod(virtual_stage, num_stages)
        turns = self.v_shaped and chunk % 2
        return num_stages - 1 - along if turns else along, chunk

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Return the passes of every micro-batch."""
        return (FORWARD, BACKWARD, WEIGHT) if self.splits_backward else (FORWARD, BACKWARD)


def all_forward_all_backward(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """AFAB (GPipe): all forwards, then all backwards in reverse order."""
    forwards = [Slot(FORWARD, i) for i in range(num_micro_batches)]
    return forwards + [Slot(BACKWARD, i) for i in reversed(range(num_micro_batches))]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """1F1B (PipeDream-flush): warm up, alternate, cool down."""
    warmup = min(num_stages - stage - 1, num_micro_batches)
    slots = [Slot(FORWARD, i) for i in range(warmup)]
    for i in range(num_micro_batches - warmup):
        slots += [Slot(FORWARD, warmup + i), Slot(BACKWARD, i)]
    return slots + [Slot(BACKWARD, i) for i in range(num_micro_batches - warmup, num_micro_batches)]


def interleaved_1f1b(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> list[Slot]:
    """Interleaved 1F1B: 1F1B over virtual stages, one micro-batch per stage and chunk in turn.

    Groups of ``num_stages`` micro-batches pass the first chunk, then the second, and so on; backwards in reverse.
    Source of the warm-up: Megatron-LM ``core/pipeline_parallel/schedules.py``.
    """
    group = num_stages * num_chunks

    def slot(kind: Pass, index: int) -> Slot:
        chunk = index % group // num_stages
        micro_batch = index // group * num_stages + index % num_stages
        return Slot(kind, micro_batch, chunk if kind is FORWARD else num_chunks - 1 - chunk)

    count = num_micro_batches * num_chunks
    warmup = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, count)
    slots = [slot(FORWARD, i) for i in range(warmup)]
    for i in range(count - warmup):
        slots += [slot(FORWARD, warmup + i), slot(BACKWARD, i)]
    return slots + [slot(BACKWARD, i) for i in range(count - warmup, count)]


def zero_bubble_h1(stage: int, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> list[Slot]:
    """ZB-H1: 1F1B with weight gradients that stage s delays by s backwards, to fill the cool-down.

    A stage holds no more micro-batches than the first stage of 1F1B.
    """
    warmup = min(num_stages - stage - 1, num_micro_batches)
    slots = [Slot(FORWARD, i) for i in range(warmup)]
    for i in range(num_micro_batches):
        if warmup + i < num_micro_batches:
            slots.append(Slot(FORWARD, warmup + i))
        slots.append(Slot(BACKWARD, i))
        if i >= stage:
            slots.append(Slot(WEIGHT, i - stage))
    return slots + [Slot(WEIGHT, i) for i in range(max(0, num_micro_batches - stage), num_micro_batches)]


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        schedule.name: schedule
        for schedule in (
            Schedule(
                "1f1b",
                "1F1B",
                one_forward_one_backward,
                "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1",
                has_steady_state=True,
            ),
            Schedule(
                "all_forward_all_backward", "AFAB", all_forward_all_backward, "Huang et al. 2019, arXiv:1811.06965"
            ),
            Schedule(
                "interleaved_1f1b",
                "interleaved 1F1B",
                interleaved_1f1b,
                "Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2",
                chunks=True,
                may_block=False,
                has_steady_state=True,
            ),
            Schedule(
                "zero_bubble_h1",
                "ZB-H1",
                zero_bubble_h1,
                "Qi et al. 2023, arXiv:2401.10241, section 2",
                splits_backward=True,
                may_block=False,
                has_steady_state=True,
            ),
        )
    }
)


def check(name: str, num_stages: int, num_micro_batches: int, num_chunks: int) -> str | None:
    """Return the rule that sizes break, as a sentence without its subject; None where they break none."""
    if not SCHEDULES[name].chunks:
        return None if num_chunks == 1 else "holds one model chunk per stage; interleaved_1f1b takes several"
    if num_chunks < 2:
        return "needs at least 2 model chunks per stage; with one it is 1f1b"
    if num_stages < 2:
        return "needs at least 2 pipeline stages"
    if num_micro_batches % num_stages:
        lower = num_micro_batches // num_stages * num_stages
        tries = f"{lower} or {lower + num_stages}" if lower else f"{num_stages}"
        return f"needs a multiple of pipeline_parallel_size ({num_stages}) micro-batches. Try {tries}"
    return None


def peak_in_flight(schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> int:
    """Return the largest number of micro-batches, times chunks, with stored activations on a stage.

    1F1B and interleaved 1F1B store those of the warm-up and of the current slot; ZB-H1 frees them s backwards later on
    stage s, in all as many as stages; AFAB stores all.
    """
    if schedule.name == "all_forward_all_backward":
        return num_micro_batches
    if schedule.splits_backward:
        return min(num_stages, num_micro_batches)
    ahead = num_stages - stage - 1
    warmup = 2 * ahead + (num_chunks - 1) * num_stages if schedule.chunks else ahead
    return min(warmup + 1, num_micro_batches * num_chunks)
