"""Deviations of a run: every step is usual, or belongs to a record of what it deviates by."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from math import log, log1p, log2
from statistics import median

from predictor.watch.activities import Activities
from predictor.watch.assembly import BESIDE_STEPS
from predictor.watch.baseline import WINDOW, Baseline, log_seconds
from predictor.watch.calibration import calibrated, is_within, needed_parts
from predictor.watch.detector import MATERIAL, Detector, Label, Outcome, Shift
from predictor.watch.drift import Drift
from predictor.watch.events import Activity
from predictor.watch.explain import NOT_EXPLAINED, finding_of
from predictor.watch.health import Change, ChangeKind, Expected, Finding
from predictor.watch.observations import Observation, Profile, usual_profile
from predictor.watch.records import Record
from predictor.watch.slow_steps import SlowSteps

_LAG = 12  # steps wait so long before they count as usual
_CALIBRATED_BY = 50  # usual steps of the run
_MOST_RECORDS = 48  # closed changes of level kept apart; the cheapest go first
_SIZES = 12
_AMONG_USUAL = 0.6  # of suspected steps: more of them slow may be a change of level
_ALIKE = 4.0  # times: changes of level no more unlike may be one drift
_LARGE = 0.1  # two sharp changes, the first as large, are two all the same
_MERGE = 32  # steps within which changes of level in one direction are one drift


class Deviations:
    """Usual steps, and records of the others."""

    def __init__(self, expected: Expected | None) -> None:
        """Start without a step."""
        self.planned: list[Change] = []  # of another run of the same plan
        self.expected = expected
        self.hosts: tuple[str, ...] = ()
        self.usual = usual_profile()
        self.detector = Detector()
        self.drift = Drift()
        self.levels: list[Record] = []  # changes of level; open ones have no last step
        self._slow: dict[str, SlowSteps] = {}
        self._activities = Activities()
        self._first: list[Observation] = []
        self._processes: deque[Record] = deque(maxlen=16)  # first steps and restarts
        self._recent: deque[tuple[Observation, float]] = deque()
        self._suspects: list[tuple[Observation, float]] = []
        self._drifting: Record | None = None
        self._before: tuple[Baseline, Profile, Record] | None = None  # the process before this one
        self._early: Profile | None = None  # usual steps at the beginning of the present level
        self._masked = 0.0
        self._observed = self._steps = 0
        self._sizes: Counter[int] = Counter()  # slow steps by log2 of their extra time over a usual step
        self._calibration: list[float] = []

    @property
    def usual_s(self) -> float | None:
        """Return the usual step; None before it is known."""
        return self.detector.baseline.seconds if self.detector.baseline is not None else None

    def observe(self, observation: Observation) -> None:
        """Take a step."""
        self._observed += 1
        self._steps += observation.steps
        beside = bool(observation.activities)
        self._masked += (beside - self._masked) / 64
        masked = beside and self._masked < 0.5
        suspected = self.detector.suspects
        outcome = self.detector.take(observation.number, observation.seconds, masked)
        if outcome.label is Label.FIRST:
            self._take_first(observation)
        elif masked:
            self._activities.take_beside(observation, outcome.extra_s)
        elif outcome.label is Label.SUSPECT:
            self._suspect(observation, outcome)
            if outcome.shift is not None:
                self._shift(outcome.shift)
            elif suspected and not self.detector.suspects:
                self._clear()
        else:
            self._take_plain(observation, outcome)

    def _take_plain(self, observation: Observation, outcome: Outcome) -> None:
        if outcome.label is Label.SLOW:
            self._slow_step(observation, outcome)
            self._levels_add(observation, counts=False)
            return
        self._recent.append((observation, outcome.extra_s))
        if len(self._recent) > _LAG:
            self._settle(self._recent.popleft()[0])
        for slow in self._slow.values():
            slow.usual_step(observation.number)

    def _settle(self, observation: Observation) -> None:
        """Take a step for usual."""
        self.usual.add(observation)
        self._levels_add(observation)
        self._calibrate(observation)
        baseline = self.detector.baseline
        assert baseline is not None
        last = self.levels[-1] if self.levels else None
        if last is not None and last.last is None and last.shift is not None and last.occurrences <= WINDOW:
            last.shift = replace(
                last.shift, after_s=baseline.seconds, after_noise=baseline.noise, after_gap_s=baseline.gap_s
            )
        if self._drifting is not None:
            self._drifting.add(observation, observation.seconds - self._drifting.level_s)
        kind = baseline.level(observation.number) - log_seconds(baseline.seconds)
        if self.drift.add(observation.number, log_seconds(observation.seconds) - kind):
            self._seek_drift(observation)

    def _seek_drift(self, observation: Observation) -> None:
        """Look for a drift, at the end of a block."""
        self._early = self._early or self.usual.copy()
        trend = self.drift.trend() if self._drifting is None else None
        if trend is None:
            return
        record = Record(ChangeKind.DRIFT, trend.first, trend.level_s, self._early, from_start=trend.from_start)
        record.add(observation, 0.0)
        record.steps = record.occurrences = trend.steps * observation.steps
        record.lost_s = trend.lost_s * observation.steps
        self._drifting = record

    def _levels_add(self, observation: Observation, counts: bool = True) -> None:
        """Add a step to the changes of level that go on; the last one takes what is above the ones before."""
        going = self._going()
        for record in going:
            if record is going[-1] and counts:
                record.add(observation, observation.seconds - record.level_s)
            else:
                record.go_on(observation.steps, record.size_s)

    def _going(self) -> list[Record]:
        """Return the changes of level that go on."""
        return [record for record in self.levels if record.last is None and record.shift is not None]

    def _count_waiting(self) -> None:
        """Count the steps that wait to settle with the deviations that go on, the last of which has its own times."""
        waiting = [observation for observation, _ in (*self._recent, *self._suspects)]
        steps = sum(observation.steps for observation in waiting)
        for record in self.levels:
            record.waiting_steps, record.waiting_s = 0, 0.0
        going = self._going()
        for record in going[:-1]:
            record.waiting_steps, record.waiting_s = steps, record.size_s * steps
        for last in (*going[-1:], self._drifting):
            if last is not None:
                last.waiting_steps = steps
                last.waiting_s = sum((step.seconds - last.level_s) * step.steps for step in waiting)

    def _calibrate(self, observation: Observation) -> None:
        if len(self._calibration) >= _CALIBRATED_BY or self.levels:
            return
        self._calibration.append(observation.seconds)
        count, baseline = len(self._calibration), self.detector.baseline
        if self.expected is not None and baseline is not None and count in (8, 16, 32, _CALIBRATED_BY):
            self.expected = calibrated(self.expected, median(self._calibration), baseline.sigma, count)

    def _take_first(self, observation: Observation) -> None:
        self._first.append(observation)
        if self.detector.baseline is None:
            return
        level = self.detector.baseline.seconds
        first, self._first = self._first, []
        last_slow = max((at for at, step in enumerate(first) if step.seconds > 1.25 * level), default=-1)
        record = Record(ChangeKind.SINGLE, first[0].number, level, usual_profile(), first_steps=True)
        for observation_ in first[: last_slow + 1]:
            record.add(observation_, observation_.seconds - level)
        record.last = first[last_slow].number if last_slow >= 0 else record.first
        for observation_ in first[last_slow + 1 :]:
            self.usual.add(observation_)
        record.usual = self.usual.copy()
        if record.lost_s > level / 2:
            self._processes.append(record)
        if self._before is not None:
            self._compare(first[0].number, *self._before)
            self._before = None

    def _compare(self, first: int, before: Baseline, usual: Profile, restart: Record) -> None:
        """Compare the level of a new process with the one before: nodes differ, and slowness may go with them."""
        now = self.detector.baseline
        assert now is not None
        shift = Shift(first, before.seconds, now.seconds, before.noise, now.noise, sharp=False)
        self._end_levels(shift)
        error = (now.sigma**2 / len(now) + before.sigma**2 / len(before)) ** 0.5
        if log(now.seconds / before.seconds) > max(log1p(MATERIAL), 3 * error):
            level = Record(ChangeKind.JUMP, first, before.seconds, usual, seen=first, shift=shift)
            level.restarted, level.hosts_changed = restart.restarted, restart.hosts_changed
            self.levels.append(level)

    def take_activity(self, activity: Activity) -> None:
        """Take work beside steps."""
        if activity.part not in BESIDE_STEPS:
            return
        step = activity.step if activity.step is not None else (self._recent[-1][0].number if self._recent else 0)
        self._activities.take(activity, step, self.usual_s or 0.0, self.usual)

    def _slow_step(self, observation: Observation, outcome: Outcome) -> None:
        key = observation.dominant(self.usual)
        slow = self._slow.setdefault(key, SlowSteps())
        level = self.usual_s
        assert level is not None
        # By chance: steps at least half as slow, those just before left out, for they may be this deviation's.
        size = min(max(round(log2(max(outcome.extra_s, 1e-9) / level)), -_SIZES), _SIZES)
        similar = sum(count for other, count in self._sizes.items() if other >= size - 1)
        self._sizes[size] += 1
        rate = (max(similar - slow.latest(observation.number), 0) + 0.5) / (self._observed + 50)
        slow.add(observation, outcome.extra_s, level, self.usual, min(rate, 0.5))

    def _suspect(self, observation: Observation, outcome: Outcome) -> None:
        """Hold a step until it is known whether the level changed; slow ones among usual ones are not held."""
        self._suspects.append((observation, outcome.extra_s))
        slow = [pair for pair in self._suspects if self._is_slow(pair[0])]
        if len(slow) <= _AMONG_USUAL * len(self._suspects):
            for step, extra in slow:
                self._take_plain(step, Outcome(Label.SLOW, extra))
            self._suspects = [pair for pair in self._suspects if pair not in slow]

    def _is_slow(self, observation: Observation) -> bool:
        return self.detector.is_slow(observation.number, log_seconds(observation.seconds))

    def _clear(self) -> None:
        """Take the suspects one by one: the level did not change."""
        suspects, self._suspects = self._suspects, []
        for observation, extra in suspects:
            label = Label.SLOW if self._is_slow(observation) else Label.USUAL
            self._take_plain(observation, Outcome(label, extra))

    def _shift(self, shift: Shift) -> None:
        """Take a change of level."""
        affected = [pair for pair in (*self._recent, *self._suspects) if pair[0].number >= shift.first]
        for observation, _ in self._recent:
            if observation.number < shift.first:
                self.usual.add(observation)
                self._levels_add(observation)
        self._recent.clear()
        self._suspects = []
        retracted = [observation for slow in self._slow.values() for observation in slow.retract(shift.first)]
        last = self.levels[-1] if self.levels else None
        if shift.after_s < shift.before_s:
            self._end_levels(shift)
        elif last is not None and _goes_on(last, shift, affected[0][0].steps):
            last.kind = ChangeKind.DRIFT
            last.shift = replace(last.shift or shift, after_s=shift.after_s, sharp=False)
            last.seen = affected[-1][0].number
        else:
            self._open_level(shift, affected[-1][0].number, retracted)
        self.usual = usual_profile()
        for observation, _ in affected:
            self.usual.add(observation)
            self._levels_add(observation)
        self._end_drift(shift.first)

    def _open_level(self, shift: Shift, seen: int, first: Sequence[Observation]) -> None:
        """Begin a change of level, whose ``first`` steps counted as slow ones."""
        level = Record(ChangeKind.JUMP, shift.first, shift.before_s, self.usual.copy(), seen=seen, shift=shift)
        for observation in first:
            level.add(observation, observation.seconds - level.level_s)
        self.levels.append(level)
        if len(self.levels) > _MOST_RECORDS:
            closed = [record for record in self.levels if record.last is not None] or self.levels[:1]
            self.levels.remove(min(closed, key=lambda record: record.lost_s))

    def _end_levels(self, shift: Shift) -> None:
        """End the changes of level that a fall goes back on."""
        for record in self.levels:
            if record.last is None and record.shift is not None:
                half = (record.shift.before_s + record.shift.after_s) / 2
                if shift.after_s < half:
                    record.last = record.seen = shift.first - 1

    def _end_drift(self, step: int) -> None:
        if self._drifting is not None:
            self._drifting.last = step - 1
            self.levels.insert(max(len(self.levels) - 1, 0), self._drifting)
            self._drifting = None
        self._early = None
        self.drift.restart()

    def restart(self, last: int, resumed: int, pause_s: float | None, moved: bool) -> None:
        """Take a new process: the level is learned anew, steps taken twice are lost."""
        while self._recent:
            self._settle(self._recent.popleft()[0])
        for observation, _ in self._suspects:
            self._levels_add(observation)
        level = self.usual_s or 0.0
        repeated = max(last - resumed, 0)
        record = Record(ChangeKind.SINGLE, resumed + 1, level, self.usual.copy(), hosts_changed=moved)
        record.last = max(last, record.first)
        record.lost_s = repeated * level + (pause_s or 0.0)
        record.occurrences = record.steps = 1
        record.restarted = f"The process restarted at step {resumed + 1}; {repeated} steps are taken again"
        self._processes.append(record)
        if self.detector.baseline is not None:
            self._before = (self.detector.baseline, self.usual, record)
        self._clear_process(last)

    def _clear_process(self, last: int) -> None:
        self.detector.restart()
        self._suspects, self._first = [], []
        self.usual = usual_profile()
        for slow in self._slow.values():
            slow.restart()
        self._end_drift(last + 1)

    def whole(self, last: int | None) -> Finding | None:
        """Return the finding of a run that is slower than predicted."""
        level, expected = self.usual_s, self.expected
        count = len(self._calibration)
        if expected is None or level is None or last is None or count < 8:
            return None
        own = median(self._calibration)
        if is_within(expected, own):
            return None
        usual = Profile(run={"seconds": expected.seconds, **dict(expected.parts)})
        record = Record(ChangeKind.WHOLE, 0, expected.seconds, usual, affected=self.usual.copy())
        record.occurrences = record.steps = self._steps
        record.lost_s = (own - expected.seconds) * self._steps
        finding = finding_of(record)
        needed = needed_parts(expected, own)
        explanations = tuple(
            replace(item, evidence=item.evidence + needed) if item.cause == NOT_EXPLAINED else item
            for item in finding.explanations
        )
        return Finding(finding.change, explanations)

    def findings(self, last: int | None, stalled: Finding | None) -> tuple[Finding, ...]:
        """Return all findings, the dearest first."""
        self._count_waiting()
        slow = [record for steps in self._slow.values() for record in steps.records]
        drift = [self._drifting] if self._drifting is not None else []
        sharp = [record for record in self.levels if record.shift is not None and record.shift.sharp]
        for record in sharp:
            record.other_sizes_s = tuple(other.size_s for other in sharp if other is not record)
            record.planned = next((change for change in self.planned if record.is_like(change)), None)
        after = self.usual_s
        for record in reversed(self.levels):
            if record.last is None and record.shift is not None:
                record.grows_on = after is not None and after - record.shift.after_s > record.size_s
                after = record.shift.before_s
        levels = [record for record in self.levels if record.is_worth_telling]
        records = [*self._processes, *self._activities, *slow, *levels, *drift]
        for record in records:
            record.hosts = self.hosts
            record.level_s = record.level_s or self.usual_s or 0.0  # of an activity before the usual step was known
        found = [finding_of(record) for record in records if record.occurrences]
        found += [finding for finding in (self.whole(last), stalled) if finding is not None]
        return tuple(sorted(found, key=lambda finding: -finding.change.lost_s))

    def recent(self) -> list[float]:
        """Return the seconds of recent usual steps, sorted."""
        return sorted(self.detector.baseline.values()) if self.detector.baseline is not None else []


def _goes_on(record: Record, shift: Shift, unit: int) -> bool:
    """Whether a change of level follows an earlier one so soon, and is so large, that both are one drift."""
    if record.shift is None or record.last is not None or record.seen < shift.first - _MERGE * unit:
        return False
    stages = record.shift.sharp and shift.sharp and record.size_s > _LARGE * record.shift.before_s
    return not stages and record.size_s / _ALIKE < shift.after_s - shift.before_s < record.size_s * _ALIKE
