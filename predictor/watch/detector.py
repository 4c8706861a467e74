"""Changes of a series of step times: level changes by CUSUM, drift by Theil–Sen, slow steps by the Hampel identifier.

One decision is a policy, not a statistic: a deviation matters where it costs ``MATERIAL`` of the time. All limits else
follow from one false alarm in ``STEPS_BETWEEN_FALSE_ALARMS`` steps of a run without faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import exp, log, log1p
from statistics import median

from predictor.watch.baseline import Baseline, log_seconds
from predictor.watch.robust import cusum_limit, midmean

MATERIAL = 0.03  # of the time: what repeated measurements of one kernel on data-centre GPUs differ by (docs/watch.md)
STEPS_BETWEEN_FALSE_ALARMS = 1e5
FIRST_STEPS = 16  # before the usual step is known
_HAMPEL = 5.0  # standard deviations; the tail of real steps is heavier than a normal one
_LAG = 12  # steps wait so long before they join the baseline
_CONFIRM, _GIVE_UP = 8, 20  # steps after a suspected change of level
_LATEST = 6  # of them tell the new level
_AGREE = 0.75  # of them on its side
_LEAST_LIMIT = 6.0  # with steps winsorised at 3 above the reference: three in a row


class Label(Enum):
    """How a step stands to the usual one."""

    FIRST = "first"
    USUAL = "usual"
    SLOW = "slow"
    SUSPECT = "suspect"  # the level may have changed; decided within ``_GIVE_UP`` steps


@dataclass(frozen=True, slots=True)
class Shift:
    """A confirmed change of level: from ``first`` on, ``before_s`` → ``after_s``; noise and gap of kinds likewise."""

    first: int
    before_s: float
    after_s: float
    before_noise: float = 0.0
    after_noise: float = 0.0
    before_gap_s: float = 0.0
    after_gap_s: float = 0.0
    sharp: bool = True  # the first steps after it are on the new level


@dataclass(slots=True)
class Outcome:
    """What one step told.

    Attributes:
        label: of the step; ``extra_s`` above the usual one of a slow step.
        shift: a change of level, confirmed by this step.
    """

    label: Label
    extra_s: float = 0.0
    shift: Shift | None = None


@dataclass(slots=True)
class Cusum:
    """One-sided CUSUM; remembers the step at which its present excursion began."""

    sum: float = 0.0
    start: int | None = None

    def take(self, score: float, number: int) -> float:
        """Add the score of a step and return the sum."""
        if self.sum <= 0 and score > 0:
            self.start = number
        self.sum = max(0.0, self.sum + score)
        return self.sum


@dataclass(slots=True)
class Detector:
    """Detector of one series, in bounded memory."""

    baseline: Baseline | None = None
    _first: list[tuple[int, float]] = field(default_factory=list)
    _recent: deque[tuple[int, float]] = field(default_factory=deque)
    _suspects: list[tuple[int, float]] | None = None
    _up: Cusum = field(default_factory=Cusum)
    _down: Cusum = field(default_factory=Cusum)
    _sign: int = 1

    def take(self, number: int, seconds: float, masked: bool = False) -> Outcome:
        """Take a step; a masked one (beside an evaluation, say) says nothing about the level."""
        value = log_seconds(seconds)
        if self.baseline is None:
            return self._take_first(number, value)
        usual = self.baseline.level(number)
        extra = seconds - exp(usual)
        if masked:
            return Outcome(Label.SLOW if self.is_slow(number, value) else Label.USUAL, extra)
        if self._suspects is not None:
            return self._decide(number, value, extra)
        slow = self.is_slow(number, value)
        self._recent.append((number, value))
        if self._suspected(number, (value - usual) / self.baseline.sigma):
            return Outcome(Label.SUSPECT, extra)
        self._settle()
        return Outcome(Label.SLOW if slow else Label.USUAL, extra)

    @property
    def suspects(self) -> bool:
        """Whether a change of level is being decided on."""
        return self._suspects is not None

    def is_slow(self, number: int, value: float) -> bool:
        """Whether a step is longer than the longest kind of step (Hampel identifier), and by something that matters."""
        assert self.baseline is not None
        above = value - self.baseline.slowest
        return above > max(_HAMPEL * self.baseline.sigma, MATERIAL)

    def restart(self) -> None:
        """Forget the level: a new process, or work that changed."""
        self.baseline = None
        self._first = []
        self._clear()

    def _clear(self) -> None:
        self._recent.clear()
        self._suspects = None
        self._up, self._down = Cusum(), Cusum()

    def _take_first(self, number: int, value: float) -> Outcome:
        self._first.append((number, value))
        if len(self._first) >= FIRST_STEPS:
            half = self._first[FIRST_STEPS // 4 :]
            middle = median(value for _, value in half)
            # Pauses among the first steps are no part of the usual one.
            near = [step for step in self._first if abs(step[1] - middle) < log(2)]
            self.baseline = Baseline(step for step in near if step[0] >= half[0][0]) if near else Baseline(half)
            self._first = []
        return Outcome(Label.FIRST)

    def _suspected(self, number: int, score: float) -> bool:
        """Whether either CUSUM passes its limit; the steps of its excursion become suspects."""
        assert self.baseline is not None
        reference = max(0.5, log1p(MATERIAL) / 2 / self.baseline.sigma)
        limit = max(_LEAST_LIMIT, cusum_limit(round(reference, 2), 2 * STEPS_BETWEEN_FALSE_ALARMS))
        for sign, cusum in ((1, self._up), (-1, self._down)):
            clipped = min(max(sign * score, -reference - 3), reference + 3)
            if cusum.take(clipped - reference, number) > limit:
                assert cusum.start is not None
                self._suspects = [step for step in self._recent if step[0] >= cusum.start]
                self._recent = deque(step for step in self._recent if step[0] < cusum.start)
                self._sign = sign
                return True
        return False

    def _settle(self) -> None:
        assert self.baseline is not None
        if len(self._recent) > _LAG:
            number, value = self._recent.popleft()
            if not self.is_slow(number, value):
                self.baseline.add(number, value)

    def _decide(self, number: int, value: float, extra: float) -> Outcome:
        """Decide on a suspected change of level."""
        assert self.baseline is not None
        assert self._suspects is not None
        self._suspects.append((number, value))
        outcome = Outcome(Label.SUSPECT, extra)
        moved = [self._sign * (value - self.baseline.level(at)) for at, value in self._suspects]
        latest = midmean(moved[-_LATEST:])
        onset = _onset(moved, latest / 2)
        after = moved[onset:]
        late = len(moved) >= _GIVE_UP
        back = all(move < log1p(MATERIAL) / 2 for move in moved[-4:])
        if (len(moved) >= _CONFIRM and back) or latest < log1p(MATERIAL):
            if back or late:
                self._give_up()
        elif len(after) >= _CONFIRM and sum(move > latest / 2 for move in after) >= _AGREE * len(after):
            steady = abs(midmean(after) - latest) < max(latest / 4, 3 * self.baseline.sigma / _LATEST**0.5)
            if steady or late:
                outcome.shift = self._shifted(onset, steady)
        elif late:
            self._give_up()
        return outcome

    def _shifted(self, onset: int, steady: bool) -> Shift:
        """Take the suspects from ``onset`` on for the new level."""
        assert self.baseline is not None
        assert self._suspects is not None
        old, suspects = self.baseline, self._suspects[onset:]
        middle = median(value for _, value in suspects)
        new = Baseline(step for step in suspects if abs(step[1] - middle) < log(2))
        shift = abs(middle - median(old.level(number) for number, _ in suspects))
        between = sum(self._sign * (value - old.level(at)) > shift / 4 for at, value in self._suspects[:onset])
        self.baseline = new
        self._clear()
        return Shift(
            suspects[0][0], old.seconds, new.seconds, old.noise, new.noise, old.gap_s, new.gap_s,
            sharp=steady and between <= 2,
        )  # fmt: skip

    def _give_up(self) -> None:
        """Take the suspects for usual and slow steps of the old level."""
        assert self.baseline is not None
        assert self._suspects is not None
        for number, value in self._suspects:
            if not self.is_slow(number, value):
                self.baseline.add(number, value)
        self._clear()


def _onset(moved: Sequence[float], half: float) -> int:
    """Return the first of two neighbours that have moved by half of a change."""
    return next((at for at, (one, two) in enumerate(pairwise(moved)) if one > half and two > half), len(moved))
