"""Lower bounds on the step time in closed form: much faster than a replay, and nearly always equal to it.

A replay is the longest path through slots and messages, so the length of any path is a lower bound. ``paths`` has the
longest paths of pipelines with similar stages.
"""

from __future__ import annotations

from itertools import accumulate

from predictor.core.timeline.paths import Durations, PerChunk, interleaved, meeting, split_backward, waiting
from predictor.core.timeline.schedules import SCHEDULES

# Schedules whose longest paths are known; of others the work of the fullest stage is taken.
WITH_PATHS = ("1f1b", "interleaved_1f1b", "zero_bubble_h1", "all_forward_all_backward")


def lower_bound(
    name: str,
    num_micro_batches: int,
    forward: PerChunk,
    backward: PerChunk,
    weight: PerChunk,
    message: float,
    blocking: bool,
    ends: Durations,
    closing: float = 0.0,
) -> float:
    """Return a lower bound on the step time, max over stages of (finished + end), plus closing.

    Equal to the replay for uniform stages: for interleaved_1f1b if no message is longer than a slot, for zero_bubble_h1
    if none is longer than half a weight-gradient slot; the work of one stage, no more, of others (``WITH_PATHS``).

    Args:
        name: of the schedule.
        num_micro_batches: per step.
        forward: duration of a forward slot, per stage and chunk.
        backward: duration of a backward slot likewise, as ``replay`` takes it.
        weight: duration of a weight-gradient slot likewise; empty where the schedule has none.
        message: duration of one message.
        blocking: sender and receiver both wait until a message is over.
        ends: time after each stage's last slot.
        closing: time after the last of these.
    """
    assert bool(weight) == SCHEDULES[name].splits_backward
    assert SCHEDULES[name].may_block or not blocking
    split = weight or [[0.0]] * len(forward)
    if name not in WITH_PATHS:
        return _fullest_stage(num_micro_batches, forward, backward, split, message, ends) + closing
    if (
        forward.count(forward[0]) == backward.count(backward[0]) == split.count(split[0]) == len(forward)
        and ends.count(ends[0]) == len(ends)
        and len(forward[0]) == forward[0].count(forward[0][0]) == backward[0].count(backward[0][0])
    ):
        sizes = (len(forward), len(forward[0]))
        slot = (forward[0][0], backward[0][0], split[0][0])
        exact = _uniform(name, num_micro_batches, sizes, slot, message, blocking)
        if exact is not None:
            return exact + ends[0] + closing
    if name == "interleaved_1f1b":
        return interleaved(num_micro_batches, forward, backward, message, ends) + closing
    f, b = [chunks[0] for chunks in forward], [chunks[0] for chunks in backward]
    if len(f) == 1:
        return num_micro_batches * (f[0] + b[0] + split[0][0]) + ends[0] + closing
    if name == "zero_bubble_h1":
        return split_backward(num_micro_batches, f, b, [chunks[0] for chunks in weight], message, ends) + closing
    if name == "all_forward_all_backward":
        return _all_forward(num_micro_batches, f, b, message, blocking, ends) + closing
    whole = meeting if blocking else waiting
    return whole(num_micro_batches, f, b, message, ends) + closing


def _uniform(
    name: str, m: int, sizes: tuple[int, int], slot: tuple[float, float, float], x: float, blocking: bool
) -> float | None:
    """Return the time of equal stages, None where it has no closed form."""
    p, v = sizes
    f, b, w = slot
    if name == "interleaved_1f1b":
        return (m * v + p - 1) * (f + b) + 2 * (v * p - 1) * x if x <= f and x <= b else None
    if name == "zero_bubble_h1":
        if m <= p or 2 * x > w:
            return None
        return m * (f + b + w) + (p - 1) * max(b + 2 * x, f + 3 * x, f + b - w + 4 * x)
    ideal = (m + p - 1) * (f + b)
    if not x or p == 1:
        return ideal
    there_and_back = 2 * (p - 1) * x
    if blocking:
        meetings = (m - 1) * (4 if p > 2 else 2) * x
        if name == "1f1b" and p > 2 and m > 1:
            meetings -= min(x, f) + min(x, b)
        return ideal + there_and_back + meetings
    if name == "1f1b":
        return ideal + there_and_back + 2 * (m - 1 + (1 - m) // p) * x
    return ideal + there_and_back


def _fullest_stage(m: int, f: PerChunk, b: PerChunk, w: PerChunk, x: float, ends: Durations) -> float:
    """V-shaped schedules, groups: the longest of the stages' work, each behind its first micro-batch's way to it."""
    arrived, longest = 0.0, 0.0
    for forward, backward, weight, end in zip(f, b, w, ends, strict=True):
        longest = max(longest, arrived + m * (sum(forward) + sum(backward) + sum(weight)) + end)
        arrived += forward[0] + x
    return longest


def _all_forward(m: int, f: Durations, b: Durations, x: float, blocking: bool, ends: Durations) -> float:
    """AFAB: two flow shops of m identical jobs; each takes its slowest stage's period for m − 1 of them.

    A stage's period includes two blocking messages, one on the first and last stage.
    """
    p = len(f)
    period_f, period_b = f, b
    if blocking:
        stay = [x, *[2 * x] * (p - 2), x]
        period_f = [slot + messages for slot, messages in zip(f, stay, strict=True)]
        period_b = [slot + messages for slot, messages in zip(b, stay, strict=True)]
    turned = sum(f) + (p - 1) * x + (m - 1) * max(period_f)
    reached: list[float] = [turned + way for way in accumulate(reversed(b), lambda before, slot: before + slot + x)]
    slowest: list[float] = list(accumulate(reversed(period_b), max))
    if blocking:  # an earlier stage delays the last message of the next stage
        slowest = [*slowest[1:], slowest[-1]]
        ends = [ends[0], *[end + x for end in ends[1:]]]
    finished = zip(reached, slowest, reversed(ends), strict=True)
    return max([at + (m - 1) * period + end for at, period, end in finished])
