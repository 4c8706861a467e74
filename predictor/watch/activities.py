"""Work between steps that a log states: checkpoints and evaluations, and those that take longer than they did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median

from predictor.watch.detector import MATERIAL
from predictor.watch.events import Activity
from predictor.watch.health import ChangeKind
from predictor.watch.observations import Observation, Profile
from predictor.watch.records import Record

_REMEMBERED = 32  # usual durations
_LEAST = 3  # of them, before one is judged
_AGAIN = 2  # long ones in a row that are a finding; a single one happens on a shared disk
# Robust standard deviations. Of lognormal durations with a deviation of 0.7, as on a busy disk, two in a row are beyond
# it and beyond the longest of 12 earlier ones in 3 of 1,000 pairs (simulated; of 32 earlier ones: 0.7).
_HAMPEL = 4.0
_LEAST_SPREAD = 0.1  # relative; of durations that repeat by chance


@dataclass(slots=True)
class _Part:
    """Activities of one part: all of them, and those that take longer."""

    all: Record
    longer: Record | None = None
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    timed: int = 0  # activities whose time the log states
    timed_step: int | None = None  # the latest of them

    def take_seconds(self, step: int, seconds: float, in_step: bool, usual_step_s: float) -> None:
        """Take the time of an activity, which ranks or further lines may state again."""
        if step == self.timed_step or not isfinite(seconds) or seconds < 0:
            return
        self.timed_step, self.timed = step, self.timed + 1
        self.all.stated_s += (seconds - self.all.stated_s) / self.timed
        if not in_step:  # else it is seen in the step
            self.all.lost_s += seconds
            if seconds > 0:
                self.compare(step, seconds, usual_step_s)

    def compare(self, step: int, seconds: float, usual_step_s: float) -> None:
        """Judge a duration by the usual ones before it."""
        if len(self.durations) >= _LEAST and self._is_long(step, seconds, usual_step_s):
            if self.longer is None or self.longer.last is not None:
                usual = median(self.durations)
                self.longer = Record(ChangeKind.SINGLE, step, usual, Profile(), is_stated=True, is_longer=True)
            _add(self.longer, step, self.all.activities)
            self.longer.lost_s += seconds - self.longer.level_s
            return
        self.durations.append(seconds)
        if self.longer is not None and self.longer.last is None:
            self.longer.last = self.longer.numbers[-1]

    def _is_long(self, step: int, seconds: float, usual_step_s: float) -> bool:
        usual = median(self.durations)
        spread = max(1.4826 * median(abs(one - usual) for one in self.durations), _LEAST_SPREAD * usual)
        numbers = self.all.numbers
        between = step - numbers[-2] if len(numbers) > 1 else 1
        is_material = seconds - usual > MATERIAL * usual_step_s * max(between, 1)
        return is_material and seconds > max(usual + _HAMPEL * spread, *self.durations)


@dataclass(slots=True)
class Activities:
    """Records of activities by part."""

    _parts: dict[str, _Part] = field(default_factory=dict)

    def take(self, activity: Activity, step: int, usual_step_s: float, usual: Profile) -> None:
        """Take an activity after a step."""
        part = self._parts.get(activity.part)
        if part is None:
            record = Record(ChangeKind.SINGLE, step, usual_step_s, usual.copy(), is_stated=True)
            part = self._parts[activity.part] = _Part(record)
        if not part.all.numbers or part.all.numbers[-1] != step:  # else another rank's, or a further line about it
            part.all.level_s = part.all.level_s or usual_step_s  # the first may come before it is known
            part.all.activities[activity.part] += 1
            _add(part.all, step, part.all.activities)
            part.all.last = step
        if activity.seconds is not None:
            part.take_seconds(step, activity.seconds, activity.in_step, usual_step_s)

    def take_beside(self, observation: Observation, extra_s: float) -> None:
        """Take a step beside an activity: what it takes above a usual one is the activity's."""
        for name in sorted(observation.activities)[:1]:
            record = self._parts[name].all
            record.lost_s += extra_s * observation.steps
            record.affected.add(observation)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records, and those of longer ones once they are sure."""
        for part in self._parts.values():
            yield part.all
            if part.longer is not None and part.longer.occurrences >= _AGAIN:
                yield part.longer


def _add(record: Record, step: int, activities: Iterable[str]) -> None:
    record.numbers.append(step)
    record.occurrences += 1
    record.steps += 1
    record.activities.update(set(activities) if record.is_longer else ())
    latest = list(record.numbers)[-4:]
    gaps = {right - left for left, right in pairwise(latest)}
    record.period = gaps.pop() if len(gaps) == 1 and record.occurrences > 2 else None
    single = record.occurrences == 1
    record.kind = ChangeKind.SINGLE if single else ChangeKind.PERIODIC if record.period else ChangeKind.IRREGULAR
