"""Wall time of a training: one account of it by cause, and many draws of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil, inf, isinf
from statistics import fmean


class Cause(StrEnum):
    """What wall time went into."""

    PRODUCTIVE = "productive"
    RECOMPUTED = "recomputed"
    RESTART = "restart"
    CHECKPOINT = "checkpoint"
    WAITING = "waiting"
    MAINTENANCE = "maintenance"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class WallTime:
    """Hours of one training by cause, and its interruptions; infinite without progress.

    Attributes:
        productive: steps that count, at the speed of healthy nodes.
        recomputed: steps lost to interruptions.
        restart: from failures to first new steps: detection, restart, reading the checkpoint.
        checkpoint: waits for checkpoints.
        waiting: for a node, where no spare is left.
        maintenance: planned stops.
        slow: time that slow or missing nodes add.
        interruptions: failures; planned stops apart.
    """

    productive: float
    recomputed: float
    restart: float
    checkpoint: float
    waiting: float
    maintenance: float
    slow: float
    interruptions: float

    @property
    def hours(self) -> float:
        """Return the wall time."""
        return sum(float(getattr(self, cause)) for cause in Cause)

    @property
    def goodput(self) -> float:
        """Return the share of the wall time in steps that count; 0 without progress."""
        return 0.0 if isinf(self.hours) else self.productive / self.hours

    def share(self, cause: Cause) -> float:
        """Return the share of the wall time that a cause took; not a number without progress."""
        return float(getattr(self, cause)) / self.hours


def no_progress(productive: float) -> WallTime:
    """Return the wall time of a training that never ends."""
    return WallTime(productive, inf, inf, 0.0, 0.0, 0.0, 0.0, inf)


@dataclass(frozen=True)
class WallTimes:
    """Draws of one training's wall time.

    Attributes:
        draws: in the order in which they were drawn, which is that of draws of the productive hours.
    """

    draws: tuple[WallTime, ...]

    @cached_property
    def _ordered(self) -> list[float]:
        return sorted(draw.hours for draw in self.draws)

    @cached_property
    def _goodputs(self) -> list[float]:
        return sorted(draw.goodput for draw in self.draws)

    def quantile(self, probability: float) -> float:
        """Return the hours that the training takes at most with a probability; infinite without progress."""
        return _quantile(self._ordered, probability)

    def goodput(self, probability: float) -> float:
        """Return the goodput that is not exceeded with a probability."""
        return _quantile(self._goodputs, probability)

    @cached_property
    def _interruptions(self) -> list[float]:
        return sorted(draw.interruptions for draw in self.draws)

    def interruptions(self, probability: float) -> float:
        """Return the failures that are not exceeded with a probability; infinite without progress."""
        return _quantile(self._interruptions, probability)

    def chance_within(self, hours: float) -> float:
        """Return the probability that the training ends within so many hours."""
        return bisect_right(self._ordered, hours) / len(self._ordered)

    def shares(self) -> dict[Cause, float]:
        """Return the mean share of the wall time by cause, over draws that end."""
        ended = [draw for draw in self.draws if not isinf(draw.hours)]
        return {cause: fmean(draw.share(cause) for draw in ended) if ended else 0.0 for cause in Cause}


def _quantile(ordered: list[float], probability: float) -> float:
    return ordered[min(max(ceil(probability * len(ordered)) - 1, 0), len(ordered) - 1)]
