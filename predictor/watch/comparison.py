"""Two runs step by step: level, spread, parts, findings of each, and from which step on they differ by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from statistics import median

from predictor.watch.health import Health
from predictor.watch.series import Bucket, StepSeries, matched

FEWEST = 8  # buckets of a stretch
CHANCE = 0.001  # of a change where there is none
LEAST_SHIFT = 0.01  # a smaller change of the ratio is no news
MOST_COMPARED = 512  # buckets


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps over which one run's time over the other's is even.

    Attributes:
        first_step, last_step: of the stretch.
        steps: that this run timed.
        this_s, other_s: median step of each.
    """

    first_step: int
    last_step: int
    steps: int
    this_s: float
    other_s: float

    @property
    def ratio(self) -> float:
        """Return this run's step over the other's, minus one."""
        return self.this_s / self.other_s - 1.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A run beside another.

    Attributes:
        this, other: their health.
        names: what they are called.
        stretches: of the step numbers that both have, in their order; empty where they share none.
    """

    this: Health
    other: Health
    names: tuple[str, str]
    stretches: tuple[Stretch, ...]

    @property
    def ratio(self) -> float | None:
        """Return this run's time over the other's for the same steps, minus one; of usual steps without shared ones."""
        if self.stretches:
            this = sum(stretch.steps * stretch.this_s for stretch in self.stretches)
            return this / sum(stretch.steps * stretch.other_s for stretch in self.stretches) - 1.0
        if not self.this.median_s or not self.other.median_s:
            return None
        return self.this.median_s / self.other.median_s - 1.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of every value, from 1; equal ones share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for index in order[start:end]:
                ranks[index] = (start + 1 + end) / 2.0
            start = end
    return ranks


def change_point(values: Sequence[float]) -> int | None:
    """Return the index from which on values lie on another level; None where they do not.

    Source: Pettitt 1979, "A non-parametric approach to the change-point problem", Applied Statistics 28: ranks, so that
    single slow steps count as any other.
    """
    count = len(values)
    total, largest, place = 0.0, 0.0, 0
    for index, rank in enumerate(_ranks(values), 1):
        total += 2.0 * rank - (count + 1)
        if abs(total) > largest and FEWEST <= index <= count - FEWEST:
            largest, place = abs(total), index
    if place == 0 or 2.0 * exp(-6.0 * largest**2 / (count**3 + count**2)) > CHANCE:
        return None
    return place if abs(median(values[place:]) / median(values[:place]) - 1.0) >= LEAST_SHIFT else None


def _stretches(pairs: Sequence[tuple[Bucket, Bucket]]) -> list[Stretch]:
    """Return stretches of an even ratio by binary segmentation."""
    place = change_point([this.mean_s / other.mean_s for this, other in pairs])
    if place is not None:
        return [*_stretches(pairs[:place]), *_stretches(pairs[place:])]
    return [
        Stretch(
            min(this.first_step for this, _ in pairs),
            max(this.last_step for this, _ in pairs),
            sum(this.steps for this, _ in pairs),
            median(this.mean_s for this, _ in pairs),
            median(other.mean_s for _, other in pairs),
        )
    ]


def stretches(this: StepSeries, other: StepSeries) -> tuple[Stretch, ...]:
    """Return how two runs' steps of the same numbers differ, stretch by stretch."""
    pairs = [pair for pair in matched(this, other, MOST_COMPARED) if pair[0].mean_s > 0.0 and pair[1].mean_s > 0.0]
    return tuple(_stretches(pairs)) if pairs else ()
