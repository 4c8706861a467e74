"""Step times by step number in bounded memory, for charts and for the comparison of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from predictor.watch.events import Step

MOST_BUCKETS = 4096


@dataclass(slots=True)
class Bucket:
    """Steps of neighbouring numbers.

    Attributes:
        first_step, last_step: the first and the last that was seen.
        steps: their count; steps that ran again after a restart count again.
        total_s, low_s, high_s: sum, smallest and largest.
    """

    first_step: int
    last_step: int
    steps: int
    total_s: float
    low_s: float
    high_s: float

    @property
    def mean_s(self) -> float:
        """Return the mean step."""
        return self.total_s / self.steps

    def join(self, other: Bucket) -> None:
        """Take the steps of another bucket."""
        self.first_step, self.last_step = min(self.first_step, other.first_step), max(self.last_step, other.last_step)
        self.steps += other.steps
        self.total_s += other.total_s
        self.low_s, self.high_s = min(self.low_s, other.low_s), max(self.high_s, other.high_s)


class StepSeries:
    """Buckets of ``width`` step numbers each; ``width`` doubles whenever there are too many of them.

    Bucket i holds the numbers from i · width on, in every series: those of two runs match.
    """

    def __init__(self, most: int = MOST_BUCKETS) -> None:
        """Start without a step; keep at most so many buckets."""
        self._most = most
        self._buckets: dict[int, Bucket] = {}
        self._rank: int | None = None
        self._before: Step | None = None
        self.width = 1

    def take(self, step: Step) -> None:
        """Take a step of the run, or of the first rank that was seen where the log has ranks alone."""
        if self._before is None:
            self._rank = step.rank
        elif step.rank is None and self._rank is not None:  # the run's own time counts before that of a rank
            self._rank, self._before = None, None
        if step.rank != self._rank:
            return
        seconds, self._before = self._seconds(step), step
        if seconds is None or not isfinite(seconds):
            return
        bucket = Bucket(step.number - step.steps + 1, step.number, step.steps, seconds * step.steps, seconds, seconds)
        self._add(step.number // self.width, bucket)
        while len(self._buckets) > self._most:
            self._widen()

    def _seconds(self, step: Step) -> float | None:
        """Return the time of a step: its own, or since the event before."""
        if step.seconds is not None:
            return step.seconds
        before = self._before
        if before is None or before.at is None or step.at is None or step.number <= before.number:
            return None
        return max(0.0, step.at - before.at) / (step.number - before.number)

    def _add(self, key: int, bucket: Bucket) -> None:
        if (known := self._buckets.get(key)) is None:
            self._buckets[key] = bucket
        else:
            known.join(bucket)

    def _widen(self) -> None:
        self.width *= 2
        narrow, self._buckets = self._buckets, {}
        for key, bucket in narrow.items():
            self._add(key // 2, bucket)

    def buckets(self, width: int | None = None) -> Mapping[int, Bucket]:
        """Return the buckets by number, in order; of a larger ``width``, its own times a power of two, joined."""
        factor = 1 if width is None else width // self.width
        joined: dict[int, Bucket] = {}
        for key in sorted(self._buckets):
            bucket = self._buckets[key]
            if (known := joined.get(key // factor)) is None:
                joined[key // factor] = Bucket(
                    bucket.first_step, bucket.last_step, bucket.steps, bucket.total_s, bucket.low_s, bucket.high_s
                )
            else:
                known.join(bucket)
        return joined

    def at_most(self, count: int) -> list[Bucket]:
        """Return the series in at most ``count`` buckets."""
        width = self.width
        while len(found := self.buckets(width)) > count:
            width *= 2
        return list(found.values())


def matched(one: StepSeries, other: StepSeries, most: int) -> list[tuple[Bucket, Bucket]]:
    """Return at most so many pairs of buckets of the step numbers that two runs share, in their order."""
    width = max(one.width, other.width)
    while True:
        ours, theirs = one.buckets(width), other.buckets(width)
        pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
        if len(pairs) <= most:
            return pairs
        width *= 2
