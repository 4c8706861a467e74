"""Records of deviations: what a change cost so far, and the facts of its steps beside those of usual ones."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from math import comb

from predictor.watch.detector import MATERIAL, STEPS_BETWEEN_FALSE_ALARMS, Shift
from predictor.watch.health import Change, ChangeKind
from predictor.watch.observations import Observation, Profile

HORIZON = 1000  # steps over which the cost of isolated slow steps is judged
_RECENT = 64  # slow steps whose distances are known
_LEAST_PULSES = 3


@dataclass(slots=True)
class Record:
    """A deviation.

    Attributes:
        kind, first, last, level_s: as of a ``Change``; ``last`` None: it goes on.
        usual, affected: facts of the steps before it and of its steps.
        seen: step up to which it was looked for.
        frequent: its slow steps are too frequent for a healthy run.
        shift: the change of level.
        activities: of its steps, by part: number of steps.
        from_start: a drift that began with the segment.
        first_steps: of a process.
        hosts_changed: of a restart; ``restarted``: what the log says about it.
    """

    kind: ChangeKind
    first: int
    level_s: float
    usual: Profile
    last: int | None = None
    affected: Profile = field(default_factory=Profile)
    lost_s: float = 0.0
    occurrences: int = 0
    steps: int = 0
    seen: int = 0
    frequent: bool = False
    shift: Shift | None = None
    activities: Counter[str] = field(default_factory=Counter)
    from_start: bool = False
    first_steps: bool = False
    hosts_changed: bool = False
    restarted: str = ""
    period: int | None = None
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, observation: Observation, extra_s: float) -> None:
        """Add an affected step."""
        self.occurrences += 1
        self.steps += observation.steps
        self.lost_s += extra_s * observation.steps
        self.affected.add(observation)
        self.activities.update(observation.activities)
        self.numbers.append(observation.number)

    @property
    def change(self) -> Change:
        """Return the change in time."""
        extra = self.lost_s / self.steps if self.steps else 0.0
        return Change(
            self.kind, self.first, self.last, self.level_s, extra, self.lost_s, max(self.occurrences, 1), self.period
        )  # fmt: skip

    @property
    def share(self) -> float:
        """Return the cost as a share of the usual time of the steps that it spans."""
        span = max(self.seen, self.numbers[-1] if self.numbers else self.first) - self.first + 1
        return self.lost_s / (self.level_s * max(span, 1)) if self.level_s > 0 else 0.0

    @property
    def is_material(self) -> bool:
        """Whether it costs more than repeated healthy runs differ by."""
        return self.lost_s >= MATERIAL * HORIZON * self.level_s or (
            self.share >= MATERIAL and (self.frequent or self.period is not None)
        )

    @property
    def is_alarm(self) -> bool:
        """Whether a run without faults would not show it, as far as times tell.

        A drift that began with the first steps is how this run usually goes: no earlier steps contradict it.
        """
        if self.kind is ChangeKind.DRIFT:
            return not self.from_start
        return self.kind in (ChangeKind.JUMP, ChangeKind.WHOLE, ChangeKind.STALL) or self.is_material


def period_of(numbers: deque[int] | list[int], rate: float) -> int | None:
    """Return the period of slow steps, None where chance explains their distances.

    Under chance each slow step is followed by another one p steps later with the probability ``rate``; the number of
    such pairs is binomial. The best p of all that the last steps offer is taken, so its probability is multiplied by p.
    """
    known = set(numbers)
    if len(known) < _LEAST_PULSES:
        return None
    last = max(known)
    recent = sorted(known)[-12:]
    best: tuple[float, int] | None = None
    for period in {last - number for number in recent[:-1]}:
        pairs = sum(number + period in known for number in known)
        chances = sum(number + period <= last for number in known)
        if period < 2 or pairs < _LEAST_PULSES - 1 or pairs < 0.4 * chances:
            continue
        chance = period * sum(
            comb(chances, k) * rate**k * (1 - rate) ** (chances - k) for k in range(pairs, chances + 1)
        )
        if best is None or chance < best[0]:
            best = (chance, period)
    # Asked at slow steps only, so their rate thins the questions.
    return best[1] if best is not None and best[0] * rate < 1 / STEPS_BETWEEN_FALSE_ALARMS else None


@dataclass(slots=True)
class SlowSteps:
    """Slow steps of one kind (the part of the step that grew): the present episode, and the isolated ones before."""

    episode: Record | None = None
    isolated: Record | None = None
    closed: deque[Record] = field(default_factory=lambda: deque(maxlen=16))

    def add(self, observation: Observation, extra_s: float, level_s: float, usual: Profile, rate: float) -> Record:
        """Add a slow step."""
        if self.episode is not None and observation.number - self.episode.numbers[-1] > self.patience:
            self._close()
        if self.episode is None:
            self.episode = Record(ChangeKind.SINGLE, observation.number, level_s, usual.copy())
        record = self.episode
        record.add(observation, extra_s)
        record.period = period_of(record.numbers, rate)
        if record.occurrences > 1:
            record.kind = ChangeKind.PERIODIC if record.period else ChangeKind.IRREGULAR
        return record

    def retract(self, first: int) -> None:
        """Forget an episode that turned out to be a change of level from ``first`` on."""
        if self.episode is not None and self.episode.first >= first:
            self.episode = None

    @property
    def patience(self) -> int:
        """Return the steps after which an episode counts as over: some times its longest distance."""
        assert self.episode is not None
        numbers = list(self.episode.numbers)
        gaps = [right - left for left, right in itertools.pairwise(numbers)]
        return max(64, 3 * max(gaps, default=64))

    def settle(self, number: int) -> None:
        """Close an episode that is over, once ``number`` has passed without a slow step."""
        if self.episode is None:
            return
        self.episode.seen = number
        if number - self.episode.numbers[-1] > self.patience:
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
            self._merge(record)

    def _merge(self, record: Record) -> None:
        """Join slow steps that cost little with the earlier ones."""
        assert self.isolated is not None
        into = self.isolated
        into.kind = ChangeKind.IRREGULAR
        into.last = into.seen = record.last or record.first
        into.occurrences += record.occurrences
        into.steps += record.steps
        into.lost_s += record.lost_s
        into.activities.update(record.activities)
        into.numbers.extend(record.numbers)
        into.affected = record.affected if record.affected.count > into.affected.count else into.affected

    @property
    def records(self) -> list[Record]:
        """Return all records."""
        return [*self.closed, *(record for record in (self.isolated, self.episode) if record is not None)]
