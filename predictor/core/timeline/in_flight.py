"""Micro-batches in flight: how many a stage holds activations of, by schedule."""

from __future__ import annotations

from functools import lru_cache
from operator import le

from predictor.core.timeline.schedules import FORWARD, Schedule


def peak_in_flight(schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, num_chunks: int) -> int:
    """Return the largest number of micro-batches, times chunks, with stored activations on a stage.

    1F1B and interleaved 1F1B store those of the warm-up and of the current slot; ZB-H1 frees them s backwards later on
    stage s, in all as many as stages; where all forward passes come first, all. V-shaped
    schedules are counted slot by slot.
    """
    if schedule.v_shaped:
        return max(map(sum, flights(schedule, stage, num_stages, num_micro_batches, num_chunks)))
    if schedule.all_forward:
        return num_micro_batches * num_chunks
    if schedule.splits_backward:
        return min(num_stages, num_micro_batches)
    ahead = num_stages - stage - 1
    warmup = 2 * ahead + (num_chunks - 1) * schedule.period(num_stages) if schedule.chunks else ahead
    return min(warmup + 1, num_micro_batches * num_chunks)


def flights(
    schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, num_chunks: int
) -> tuple[tuple[int, ...], ...]:
    """Return the fullest moments of a stage, each as the micro-batches in flight of every chunk.

    No other moment has as many of every chunk. A micro-batch is in flight from its forward pass to its last backward
    pass. Steps longer than warm-up and cool-down together hold no more.
    """
    if schedule.all_forward:
        return ((num_micro_batches,) * num_chunks,)
    period = schedule.period(num_stages)
    if schedule.has_steady_state:
        longest = 3 * period + 4 * num_stages
        num_micro_batches = min(num_micro_batches, longest + (num_micro_batches - longest) % period)
    return _flights(schedule, stage, num_stages, num_micro_batches, num_chunks)


@lru_cache(maxsize=4096)
def _flights(
    schedule: Schedule, stage: int, num_stages: int, num_micro_batches: int, num_chunks: int
) -> tuple[tuple[int, ...], ...]:
    held, moments = [0] * num_chunks, set()
    for kind, _, chunk in schedule.order(stage, num_stages, num_micro_batches, num_chunks):
        if kind is FORWARD:
            held[chunk] += 1
            moments.add(tuple(held))
        elif kind is schedule.passes[-1]:
            held[chunk] -= 1
    return tuple([at for at in moments if not any(at != other and all(map(le, at, other)) for other in moments)])
