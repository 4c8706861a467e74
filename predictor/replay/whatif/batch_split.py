"""Split of a global batch that balances ranks on different devices.

A rank's local time, its step without waiting for others, is affine in its samples: a fixed part and one per sample, as
Pollux models the computation (Qiao et al. 2021, arXiv:2008.12260). The split minimises the largest local time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf, isfinite
from typing import NamedTuple

from predictor.replay.files.record_model import RecordError
from predictor.replay.graph.clocks import Clock
from predictor.replay.graph.global_graph import Member, join
from predictor.replay.graph.global_replay import GlobalReplay, replay_global
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph
from predictor.replay.graph.rank_count import CollectiveTime, ring_traffic
from predictor.replay.whatif.mixed import OperatorRatio, Place, mixed_graph, own_collectives, same_ratio


class LocalTime(NamedTuple):
    """A rank's step without waiting, by its samples.

    Attributes:
        fixed_us: whatever the samples.
        per_sample_us: more for each of them.
        batch_sizes: at how many it was measured: two, or one, of which computing outside the optimizer is taken to
            scale with the samples and all else not to.
    """

    fixed_us: float
    per_sample_us: float
    batch_sizes: int

    @property
    def source(self) -> str:
        """Return how the two parts are known, in words."""
        if self.batch_sizes > 1:
            return "measured at two batch sizes"
        return "measured at one batch size; computing outside the optimizer scales with samples, all else does not"

    def at(self, samples: int) -> float:
        """Return the time of so many samples, in microseconds."""
        return self.fixed_us + self.per_sample_us * samples


@dataclass(frozen=True, slots=True)
class Balance:
    """A balanced split of a global batch beside the even one.

    Attributes:
        times: of the ranks.
        even: samples of each rank, as equal as can be.
        split: samples of each rank that make the largest local time least.
        before: replay of the even split, the ranks starting together: a late start of the traced step is no split's.
        after: replay of the balanced one.
    """

    times: tuple[LocalTime, ...]
    even: tuple[int, ...]
    split: tuple[int, ...]
    before: GlobalReplay
    after: GlobalReplay


def balance(
    places: Sequence[Place],
    samples: Sequence[int],
    global_batch: int | None = None,
    *,
    times: Sequence[LocalTime] | None = None,
    collective_us: CollectiveTime = ring_traffic,
    multiple: int = 1,
    most: Sequence[int] | None = None,
) -> Balance:
    """Split a global batch over the ranks of a mixed job and replay it.

    Gradients of ranks with unequal samples must be averaged by samples, which is the training's business.

    Args:
        places: one a rank.
        samples: of one step of each place's trace.
        global_batch: samples of all ranks; None: as traced.
        times: of the ranks; None: from one trace each.
        collective_us: see ``mixed_graph``.
        multiple: of which each rank's samples are, such as a micro-batch size.
        most: samples that fit into each rank's memory; None: any.

    Raises:
        RecordError: the samples are not one positive number a rank, or the global batch cannot be split.
    """
    if len(samples) != len(places) or min(samples, default=0) < 1:
        raise RecordError(
            f"samples are {list(samples)}; expected one number of 1 or more for each of {len(places)} ranks"
        )
    whole = sum(samples) if global_batch is None else global_batch
    known = tuple(times or (local_time(place, count) for place, count in zip(places, samples, strict=True)))
    even = balanced_split([LocalTime(0.0, 1.0, 1)] * len(places), whole, multiple=multiple, most=most)
    split = balanced_split(known, whole, multiple=multiple, most=most)
    before, after = (
        replay_global(
            mixed_graph(
                [_resized(*rank) for rank in zip(places, known, samples, counts, strict=True)],
                collective_us,
                keeps_starts=False,
            )
        )
        for counts in (even, split)
    )
    return Balance(known, even, split, before, after)


def balanced_split(
    times: Sequence[LocalTime],
    global_batch: int,
    *,
    minimum: int = 1,
    multiple: int = 1,
    most: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Return whole samples of each rank that add up to the global batch and make the largest time least.

    Exact: each step gives the next samples to the rank that has them done first, and as times only grow with samples,
    any other split leaves a rank that ends no earlier. Time is O(samples · log ranks).

    Args:
        times: of the ranks.
        global_batch: samples of all of them.
        minimum: samples that each rank has at least, rounded up to the multiple.
        multiple: of which each rank's samples are.
        most: samples that fit into each rank's memory; None: any.

    Raises:
        RecordError: a time does not grow with samples, or the global batch is too small or no multiple.
    """
    least = -(-minimum // multiple) * multiple
    room = [whole // multiple * multiple for whole in (most or [global_batch] * len(times))]
    _check_split(times, global_batch, least, multiple, room)
    counts = [least] * len(times)
    following = [(time.at(least + multiple), rank) for rank, time in enumerate(times) if room[rank] > least]
    heapify(following)
    for _ in range((global_batch - least * len(times)) // multiple):
        rank = following[0][1]
        counts[rank] += multiple
        if counts[rank] < room[rank]:
            heapreplace(following, (times[rank].at(counts[rank] + multiple), rank))
        else:
            heappop(following)
    return tuple(counts)


def _check_split(times: Sequence[LocalTime], global_batch: int, least: int, multiple: int, room: Sequence[int]) -> None:
    """Check that a global batch can be split.

    Raises:
        RecordError: it cannot.
    """
    for rank, time in enumerate(times):
        if not (isfinite(time.fixed_us) and 0.0 <= time.per_sample_us < inf):
            raise RecordError(f"the local time of rank {rank} is {time}; it must be finite and not fall with samples")
    if not times or global_batch % multiple or global_batch < least * len(times):
        raise RecordError(
            f"the global batch is {global_batch} for {len(times)} ranks; it must be a multiple of {multiple} and give "
            f"each rank {least} or more"
        )
    if len(room) != len(times) or min(room) < least or sum(room) < global_batch:
        raise RecordError(
            f"at most {list(room)} samples fit on the ranks; each of {len(times)} ranks needs {least} or more, "
            f"and together {global_batch} in multiples of {multiple}"
        )


def local_us(place: Place) -> float:
    """Return the step of a rank that never waits for others, in microseconds."""
    local = place.local()
    clock = Clock(local.rank, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    own = [
        joined._replace(members=(Member(local.rank, task, joined.own_us, (0,)),))
        for task, joined in own_collectives(place).items()
    ]
    return replay_global(join([local], [clock], own)).makespan_us


def local_time(place: Place, samples: int) -> LocalTime:
    """Return a rank's local time from a trace at one batch size: the line through it and twice the samples.

    Computing outside the optimizer is taken to scale with the samples; the host, the optimizer and the collectives,
    whose gradients are of the same size, are not. Where the host hides behind computing, or the other way round, the
    true time bends, and the line is exact at these two points alone.
    """
    once, twice = local_us(place), local_us(scaled_place(place, per_sample(2.0)))
    slope = max(0.0, twice - once) / samples
    return LocalTime(once - slope * samples, slope, 1)


def local_time_of_two(place: Place, samples: int, other: Place, other_samples: int) -> LocalTime:
    """Return a rank's local time from traces of the same device at two batch sizes: the line through both.

    Raises:
        RecordError: the batch sizes are the same, or the larger one takes no longer.
    """
    (less, less_us), (more, more_us) = sorted([(samples, local_us(place)), (other_samples, local_us(other))])
    if less == more or more_us < less_us:
        raise RecordError(
            f"local times are {less_us:.1f} µs with {less} samples and {more_us:.1f} µs with {more}; the traces must "
            "be of two batch sizes, the larger one taking longer"
        )
    slope = min((more_us - less_us) / (more - less), more_us / more)  # no fixed part is less than none
    return LocalTime(more_us - slope * more, slope, 2)


def per_sample(factor: float) -> OperatorRatio:
    """Return the ratio of operators for ``factor`` times the samples: the optimizer's time does not change."""

    def ratio(local: LocalGraph, operator: int) -> float:
        is_optimizer = operator != NO_OPERATOR and local.operators[operator].step_pass == "optimizer"
        return 1.0 if is_optimizer else factor

    return ratio


def scaled_place(place: Place, ratio: OperatorRatio) -> Place:
    """Return a place whose operators take ``ratio`` times as long as on its device."""
    device = place.ratio
    if device is None:
        return place._replace(ratio=ratio)
    return place._replace(ratio=lambda local, operator: device(local, operator) * ratio(local, operator))


def _resized(place: Place, time: LocalTime, samples: int, count: int) -> Place:
    """Return a place that computes ``count`` samples where its trace has ``samples``."""
    if count == samples:
        return place
    if time.batch_sizes > 1:
        return scaled_place(place, same_ratio(time.at(count) / time.at(samples)))
    return scaled_place(place, per_sample(count / samples))
