"""Pipeline schedules: each is one function that orders a stage's slots and knows nothing of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Slot(NamedTuple):
    """One micro-batch's forward or backward pass through one stage."""

    is_forward: bool
    micro_batch: int


Schedule = Callable[[int, int, int], list[Slot]]


def all_forward_all_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Slot]:
    """AFAB (GPipe): all forwards, then all backwards in reverse order. Huang et al. 2019, arXiv:1811.06965."""
    forwards = [Slot(True, i) for i in range(num_micro_batches)]
    return forwards + [Slot(False, i) for i in reversed(range(num_micro_batches))]


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> list[Slot]:
    """1F1B (PipeDream-flush): warm up, alternate, cool down. Narayanan et al. 2021, arXiv:2104.04473."""
    warmup = min(num_stages - stage - 1, num_micro_batches)
    slots = [Slot(True, i) for i in range(warmup)]
    for i in range(num_micro_batches - warmup):
        slots += [Slot(True, warmup + i), Slot(False, i)]
    return slots + [Slot(False, i) for i in range(num_micro_batches - warmup, num_micro_batches)]


SCHEDULES: dict[str, Schedule] = {
    "1f1b": one_forward_one_backward,
    "all_forward_all_backward": all_forward_all_backward,
}
