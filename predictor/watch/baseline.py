"""Usual step of a run: level by kind of step, spread, rounding; a window of recent steps without the slow ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, log, sqrt

from predictor.watch.robust import ROUNDED_DIFFERENCE, long_run_factor, midmean, rounding, spread

WINDOW = 128  # steps that the usual step is estimated from
LONGEST_KINDS = 6  # a pattern of step kinds (short, long, short, long …) repeats within so many steps
_REFRESH = 8  # steps between two estimates; of a full window twice as many
_PATTERNS = 4  # estimates between two searches for a pattern of kinds
_PER_KIND = 4  # steps of each kind that a pattern needs
_LEAST_SIGMA = 1e-3  # relative; below it clocks and timers decide
_BY_KIND = 0.5  # a pattern of kinds must halve the spread


class Baseline:
    """Level and spread of recent usual steps, in log seconds.

    Attributes:
        period: kinds of step alternate with it; 1: all steps are alike.
        levels: log seconds by ``number % period``.
        sigma: standard deviation around the level, widened for autocorrelation.
        noise: relative standard deviation; at least what rounding adds.
        unit_s: to which the times are rounded; 0: not seen.
    """

    __slots__ = ("_estimates", "_fresh", "_steps", "levels", "noise", "period", "sigma", "slowest", "unit_s")

    def __init__(self, steps: Iterable[tuple[int, float]]) -> None:
        """Begin with usual steps: number and log seconds."""
        self._steps: deque[tuple[int, float]] = deque(steps, maxlen=WINDOW)
        self._fresh = self._estimates = 0
        self.period = 1
        self.unit_s = 0.0
        self.levels: list[float] = []
        self.sigma = self.noise = self.slowest = 0.0
        self._estimate()

    def add(self, number: int, value: float) -> None:
        """Add a usual step."""
        self._steps.append((number, value))
        self._fresh += 1
        if self._fresh >= (_REFRESH if len(self._steps) < WINDOW else 2 * _REFRESH):
            self._estimate()

    def level(self, number: int) -> float:
        """Return the usual log seconds of a step."""
        return self.levels[number % self.period]

    @property
    def seconds(self) -> float:
        """Return the usual step in seconds, the mean of its kinds."""
        return sum(exp(level) for level in self.levels) / self.period

    @property
    def gap_s(self) -> float:
        """Return the difference of the longest and the shortest kind of step, seconds."""
        return exp(max(self.levels)) - exp(min(self.levels))

    def values(self) -> list[float]:
        """Return the window's seconds."""
        return [exp(value) for _, value in self._steps]

    def __len__(self) -> int:
        """Return the number of steps in the window."""
        return len(self._steps)

    def _estimate(self) -> None:
        self._fresh = 0
        steps = list(self._steps)
        if not self.levels or self._estimates % _PATTERNS == 0:
            self.period, self.levels = _kinds(steps)
        else:
            self.levels = _levels(steps, self.period)
        self._estimates += 1
        residuals = [value - self.levels[number % self.period] for number, value in steps]
        self.slowest = max(self.levels)
        self.unit_s = rounding([exp(value) for _, value in steps])
        floor = max(_LEAST_SIGMA, ROUNDED_DIFFERENCE * self.unit_s / exp(min(self.levels)))
        self.noise = max(spread(residuals, 0.0), floor)
        # A median of few values is uncertain: its standard error widens what counts as usual.
        sigma = self.noise * sqrt(1 + 2 * self.period / len(steps))
        limit = 3 * sigma
        self.sigma = sigma * long_run_factor([min(max(value, -limit), limit) for value in residuals])


def _by_kind(steps: Sequence[tuple[int, float]], period: int) -> list[list[float]]:
    by_kind: list[list[float]] = [[] for _ in range(period)]
    first, last = steps[0][0], steps[-1][0]
    if last - first == len(steps) - 1:  # none is left out
        values = [value for _, value in steps]
        for kind in range(period):
            by_kind[(first + kind) % period] = values[kind::period]
        return by_kind
    for number, value in steps:
        by_kind[number % period].append(value)
    return by_kind


def _levels(steps: Sequence[tuple[int, float]], period: int) -> list[float]:
    """Return the level of each kind; of a kind without steps that of all."""
    return [midmean(kind or [value for _, value in steps]) for kind in _by_kind(steps, period)]


def _kinds(steps: Sequence[tuple[int, float]]) -> tuple[int, list[float]]:
    """Return the shortest pattern of kinds that halves the spread, and its levels."""
    values = [value for _, value in steps]
    best = (1, [midmean(values)])
    least = spread(values, best[1][0])
    for period in range(2, min(LONGEST_KINDS, len(steps) // _PER_KIND) + 1):
        if min(map(len, _by_kind(steps, period))) < _PER_KIND - 1:
            continue
        levels = _levels(steps, period)
        rest = spread([value - levels[number % period] for number, value in steps], 0.0)
        if rest < _BY_KIND * least - 1e-4:
            best, least = (period, levels), rest
    return best


def log_seconds(seconds: float) -> float:
    """Return the logarithm of a step time; a time of nothing counts as a nanosecond."""
    return log(max(seconds, 1e-9))
