"""Slow drift: the trend of block means since the last change of level."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, expm1, log1p
from statistics import median

from predictor.watch.detector import MATERIAL
from predictor.watch.robust import mann_kendall, midmean, theil_sen

_BLOCK = 32  # steps
_MOST_BLOCKS = 48  # then pairs are joined: bounded memory over any length
_LEAST_BLOCKS = 8
_LEAST_BEFORE = 4
_ALREADY = 0.2  # of the later slope
_TREND = 4.3  # standard normal: one chance in 10⁵


@dataclass(frozen=True, slots=True)
class Trend:
    """A drift: its first step, the level before it, seconds that it cost so far, its steps."""

    first: int
    level_s: float
    lost_s: float
    steps: int
    from_start: bool


@dataclass(slots=True)
class Drift:
    """Midmeans of blocks of usual steps, by the step at their middle."""

    _open: list[tuple[int, float]] = field(default_factory=list)
    _blocks: list[tuple[float, float]] = field(default_factory=list)
    _size: int = _BLOCK

    def add(self, number: int, value: float) -> bool:
        """Add the log seconds of a usual step; return whether a block is complete."""
        self._open.append((number, value))
        if len(self._open) < self._size:
            return False
        middle = midmean([value for _, value in self._open])
        self._blocks.append((self._open[len(self._open) // 2][0], middle))
        self._open = []
        if len(self._blocks) > _MOST_BLOCKS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=False)
            self._blocks = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in pairs]
            self._size = min(2 * self._size, 1 << 16)
        return True

    def restart(self) -> None:
        """Forget the blocks."""
        self._open, self._blocks, self._size = [], [], _BLOCK

    @property
    def per_thousand(self) -> float | None:
        """Return the relative change of the step per 1,000 steps; None with too few."""
        if len(self._blocks) < 3:
            return None
        return expm1(1000 * theil_sen(self._blocks))

    def trend(self) -> Trend | None:
        """Return a drift that chance does not explain and that matters."""
        blocks = self._blocks
        if len(blocks) < _LEAST_BLOCKS:
            return None
        values = [value for _, value in blocks]
        level = median(values[:3])
        if median(values[-3:]) - level < log1p(MATERIAL) or mann_kendall(values) < _TREND:
            return None
        below = [index for index, value in enumerate(values) if value <= level + log1p(MATERIAL) / 4]
        onset = below[-1] if below else 0
        lost = sum(exp(value) - exp(level) for value in values[onset:]) * self._size
        return Trend(
            round(blocks[onset][0]), exp(level), lost, (len(blocks) - onset) * self._size, _is_usual(blocks, onset)
        )


def _is_usual(blocks: list[tuple[float, float]], onset: int) -> bool:
    """Whether the blocks before the onset rise too, if slower, or are too few to tell."""
    before, after = blocks[: onset + 1], blocks[onset:]
    return len(before) < _LEAST_BEFORE or theil_sen(before) > _ALREADY * theil_sen(after)
