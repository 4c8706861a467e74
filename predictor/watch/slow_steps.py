"""Slow steps between usual ones: periodic ones by their distances, frequent ones by the CUSUM of a proportion."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import comb, log, log1p

from predictor.watch.detector import MATERIAL, STEPS_BETWEEN_FALSE_ALARMS, Cusum
from predictor.watch.health import ChangeKind
from predictor.watch.observations import Observation, Profile
from predictor.watch.records import HORIZON, Record

HEALTHY_RATE, _FAULTY_RATE = 0.01, 0.2  # slow steps of all; the CUSUM of a proportion tells these apart
SLOW_SCORE = log(_FAULTY_RATE / HEALTHY_RATE)
USUAL_SCORE = log1p(-_FAULTY_RATE) - log1p(-HEALTHY_RATE)
SLOW_LIMIT = 9.0  # simulated: a false alarm in 1.4 · 10⁵ steps at the healthy rate

_LOOSE = 32  # slow steps without a period that are remembered
_MOST_PERIODIC = 8
_PATIENCE = 64  # steps without a slow one after which an episode is over


def period_of(numbers: list[int], rate: float) -> int | None:
    """Return the period at which the last of some slow steps came, None where chance explains it.

    Under chance each slow step is followed by another one p steps later with the probability ``rate``; the number of
    such pairs is binomial. As many periods as p were tried, and only at slow steps, so their rate thins the trials.

    >>> period_of([100, 150, 163, 200, 250], rate=0.01)
    50
    """
    known, last = set(numbers), numbers[-1]
    best: tuple[float, int] | None = None
    for period in {last - number for number in numbers[-13:-1]}:
        if period < 2 or last - 2 * period not in known:
            continue
        start = last
        while start - period in known:
            start -= period
        chances = sum(start <= number < last for number in known)
        pairs = sum(start <= number < last and number + period in known for number in known)
        tail = sum(comb(chances, k) * rate**k * (1 - rate) ** (chances - k) for k in range(pairs, chances + 1))
        if best is None or period * tail < best[0]:
            best = (period * tail, period)
    return best[1] if best is not None and best[0] * rate < 1 / STEPS_BETWEEN_FALSE_ALARMS else None


@dataclass(slots=True)
class SlowSteps:
    """Slow steps of one kind (the part of the step that grew).

    Attributes:
        periodic: by period; ended ones too.
        episode: slow steps without a period, close to each other.
        isolated: earlier ones that cost little; ``closed``: earlier ones that cost much.
    """

    periodic: deque[Record] = field(default_factory=lambda: deque(maxlen=_MOST_PERIODIC))
    episode: Record | None = None
    isolated: Record | None = None
    closed: deque[Record] = field(default_factory=lambda: deque(maxlen=16))
    _loose: deque[tuple[Observation, float]] = field(default_factory=lambda: deque(maxlen=_LOOSE))
    _patience: int = _PATIENCE
    _rate: Cusum = field(default_factory=Cusum)

    def add(self, observation: Observation, extra_s: float, level_s: float, usual: Profile, rate: float) -> None:
        """Add a slow step; ``rate``: of slow steps in the run so far."""
        number, unit = observation.number, observation.steps
        self._patience = _PATIENCE * unit
        for record in self.periodic:
            period = record.period
            if record.last is None and period and (number - record.numbers[-1]) % period == 0:
                record.add(observation, extra_s)
                return
        self._loose.append((observation, extra_s))
        period = period_of([loose.number // unit for loose, _ in self._loose], rate)
        if period is not None:
            self._split(period * unit, level_s, usual)
            return
        if extra_s * unit >= MATERIAL * HORIZON * level_s:
            pause = Record(ChangeKind.SINGLE, number, level_s, usual.copy(), last=number, seen=number)
            pause.add(observation, extra_s)
            self.closed.append(pause)
            return
        frequent = self._rate.take(SLOW_SCORE, number) > SLOW_LIMIT
        self._rate.sum = min(self._rate.sum, SLOW_LIMIT)
        self.settle(number)
        if self.episode is None:
            self.episode = Record(ChangeKind.SINGLE, number, level_s, usual.copy())
        self.episode.add(observation, extra_s)
        self.episode.frequent = self.episode.frequent or frequent
        self.episode.kind = ChangeKind.SINGLE if self.episode.occurrences == 1 else ChangeKind.IRREGULAR

    def latest(self, number: int) -> int:
        """Return the slow steps without a period within the last ones."""
        return sum(observation.number > number - self._patience for observation, _ in self._loose)

    def usual_step(self, number: int) -> None:
        """Take note of a step that is not slow."""
        self._rate.take(USUAL_SCORE, number)
        self.settle(number)

    def _split(self, period: int, level_s: float, usual: Profile) -> None:
        """Move the steps of a period to a record of their own."""
        by_number = {observation.number: (observation, extra) for observation, extra in self._loose}
        at = self._loose[-1][0].number
        chain = []
        while at in by_number:
            chain.append(by_number[at])
            at -= period
        moved = {observation.number for observation, _ in chain}
        record = Record(ChangeKind.PERIODIC, min(moved), level_s, usual.copy(), period=period)
        for observation, extra in reversed(chain):
            record.add(observation, extra)
            for other in (self.episode, self.isolated, *self.closed):
                if other is not None and other.remove(observation.number):
                    self._rate.sum = max(0.0, self._rate.sum - SLOW_SCORE)
        self.periodic.append(record)
        self.closed = deque((other for other in self.closed if other.occurrences), maxlen=self.closed.maxlen)
        self.episode = self.episode if self.episode is not None and self.episode.occurrences else None
        self.isolated = self.isolated if self.isolated is not None and self.isolated.occurrences else None
        kept = [pair for pair in self._loose if pair[0].number not in moved]
        self._loose.clear()
        self._loose.extend(kept)

    def retract(self, first: int) -> list[Observation]:
        """Return, and forget, the slow steps that turned out to be a change of level from ``first`` on."""
        for record in (*self.periodic, self.episode):
            while record is not None and record.numbers and record.numbers[-1] >= first:
                if not record.remove(record.numbers[-1]):
                    break
        self.periodic = deque((record for record in self.periodic if record.occurrences), maxlen=_MOST_PERIODIC)
        self.episode = self.episode if self.episode is not None and self.episode.occurrences else None
        retracted = []
        while self._loose and self._loose[-1][0].number >= first:
            retracted.append(self._loose.pop()[0])
        self._rate = Cusum()
        return retracted[::-1]

    def restart(self) -> None:
        """End everything: step numbers go back."""
        for record in self.periodic:
            record.last = record.numbers[-1] if record.last is None else record.last
        if self.episode is not None:
            self._close()
        self._loose.clear()
        self._rate = Cusum()

    def settle(self, number: int) -> None:
        """End what is over by step ``number``."""
        for record in self.periodic:
            if record.last is None and record.period and record.numbers:
                record.seen = max(number, record.numbers[-1])
                if number - record.numbers[-1] > 3 * record.period:
                    record.last = record.seen = record.numbers[-1]
        if self.episode is None:
            return
        self.episode.seen = number
        if number - self.episode.numbers[-1] > self._patience:
            self._close()

    def _close(self) -> None:
        assert self.episode is not None
        record, self.episode = self.episode, None
        record.last = record.seen = record.numbers[-1]
        if record.is_material:
            self.closed.append(record)
        elif self.isolated is None:
            self.isolated = record
        else:
            self.isolated.join(record)

    @property
    def records(self) -> list[Record]:
        """Return all records."""
        single = [record for record in (self.isolated, self.episode) if record is not None]
        return [*(record for record in self.periodic if record.occurrences), *self.closed, *single]
