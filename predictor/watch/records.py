"""Records of deviations: what a change cost so far, and the facts of its steps beside those of usual ones."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.watch.detector import MATERIAL, Shift
from predictor.watch.health import Change, ChangeKind
from predictor.watch.observations import MEMORY_SHARE, Observation, Profile

HORIZON = 1000  # steps over which the cost of isolated slow steps is judged
_SAME_STEP = 8  # steps within which two runs change their level at the same step
_RECENT = 64  # slow steps whose distances are known


@dataclass(slots=True)
class Record:
    """A deviation.

    Attributes:
        kind, first, last, level_s: as of a ``Change``; ``last`` None: it goes on.
        usual, affected: facts of the steps before it and of its steps.
        seen: step up to which it was looked for.
        frequent: its slow steps are too frequent for a healthy run.
        shift: the change of level.
        other_sizes_s: of the other sharp changes of level of the run.
        hosts: of the ranks, as many to each.
        planned: the same change of the run that this one is compared with.
        activities: of its steps, by part: number of steps.
        from_start: a drift that began with the segment.
        grows_on: a change of level whose level went on growing by more than its size, without a further change: a
            stage of a growth by which the whole run goes (an attention window that widens, say).
        first_steps: of a process.
        hosts_changed: of a restart; ``restarted``: what the log says about it.
        is_stated: work beside steps that the log states; ``is_longer``: it takes longer than it did.
        stated_s: mean time of such work as the log states it; 0: it does not.
        memory_share: of the limit, at the last affected step.
        waiting_steps, waiting_s: steps that may yet turn out to be of another change, and what they lost so far.
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
    other_sizes_s: tuple[float, ...] = ()
    planned: Change | None = None
    hosts: tuple[str, ...] = ()
    activities: Counter[str] = field(default_factory=Counter)
    from_start: bool = False
    grows_on: bool = False
    first_steps: bool = False
    hosts_changed: bool = False
    restarted: str = ""
    is_stated: bool = False
    is_longer: bool = False
    stated_s: float = 0.0
    memory_share: float | None = None
    waiting_steps: int = 0
    waiting_s: float = 0.0
    period: int | None = None
    latest: deque[tuple[int, float, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, observation: Observation, extra_s: float) -> None:
        """Add an affected step."""
        self.occurrences += 1
        self.steps += observation.steps
        self.lost_s += extra_s * observation.steps
        self.affected.add(observation)
        self.memory_share = observation.facts.get(MEMORY_SHARE, self.memory_share)
        self.activities.update(observation.activities)
        self.numbers.append(observation.number)
        self.latest.append((observation.number, extra_s * observation.steps, observation.steps))

    def go_on(self, steps: int, extra_s: float) -> None:
        """Count steps that the deviation costs as much as before."""
        self.occurrences += 1
        self.steps += steps
        self.lost_s += extra_s * steps

    def remove(self, number: int) -> bool:
        """Take a recent step out again; whether it was there."""
        for entry in self.latest:
            if entry[0] == number:
                self.latest.remove(entry)
                self.numbers.remove(number)
                self.occurrences -= 1
                self.lost_s -= entry[1]
                self.steps -= entry[2]
                return True
        return False

    def join(self, later: Record) -> None:
        """Take the steps of a later record of the same kind."""
        self.kind = ChangeKind.IRREGULAR
        self.last = self.seen = later.last or later.first
        self.occurrences += later.occurrences
        self.steps += later.steps
        self.lost_s += later.lost_s
        self.activities.update(later.activities)
        self.numbers.extend(later.numbers)
        self.latest.extend(later.latest)
        self.affected = later.affected if later.affected.count > self.affected.count else self.affected

    @property
    def change(self) -> Change:
        """Return the change in time."""
        lost, steps = self.lost_s + self.waiting_s, self.steps + self.waiting_steps
        extra = lost / steps if steps else 0.0
        return Change(
            self.kind, self.first, self.last, self.level_s, extra, lost, max(self.occurrences, 1), self.period
        )  # fmt: skip

    def host_of(self, ranks: Sequence[int]) -> str:
        """Return the host that some ranks share with no other rank; "" where there is none."""
        each = len(self.affected.ranks) // len(self.hosts) if self.hosts else 0
        if not each or len(self.hosts) < 2 or len(ranks) != each or len({rank // each for rank in ranks}) > 1:
            return ""
        return self.hosts[min(ranks[0] // each, len(self.hosts) - 1)]

    def is_like(self, other: Change) -> bool:
        """Whether another run changed its level at the same step, by the same factor."""
        if self.shift is None or other.level_s <= 0 or self.shift.before_s <= 0:
            return False
        factor = (1 + other.extra_s / other.level_s) / (self.shift.after_s / self.shift.before_s)
        return abs(self.first - other.first_step) <= _SAME_STEP and abs(factor - 1) < MATERIAL

    @property
    def size_s(self) -> float:
        """Return the size of a change of level."""
        return self.shift.after_s - self.shift.before_s if self.shift is not None else 0.0

    @property
    def is_material(self) -> bool:
        """Whether it costs what matters: of the steps that it spans, of ``HORIZON`` if it is over or isolated."""
        span = max(self.seen, self.numbers[-1] if self.numbers else self.first) - self.first + 1
        if self.last is not None or not (self.frequent or self.period is not None):
            span = max(span, HORIZON)
        return self.lost_s >= MATERIAL * span * self.level_s

    @property
    def is_alarm(self) -> bool:
        """Whether a run without faults would not show it, as far as times tell.

        A change of level counts as long as it lasts, and by its cost once it is over. A drift that began with the
        first steps is how this run usually goes: no earlier steps contradict it.
        """
        if self.is_longer:
            return True
        if self.kind is ChangeKind.DRIFT and self.shift is None:
            return not self.from_start
        if self.shift is not None and self.last is None:
            return self.size_s >= MATERIAL * self.shift.before_s and not self.grows_on
        return self.kind in (ChangeKind.WHOLE, ChangeKind.STALL) or self.is_material

    @property
    def tolerated(self) -> str:
        """Return why it is no alarm, whatever caused it."""
        if self.kind is ChangeKind.DRIFT and self.shift is None:
            return "as this run goes since its first steps"
        if self.shift is not None and self.last is None and self.grows_on:
            return "a stage of a growth that goes on"
        return f"it costs less than {MATERIAL:.0%} of the time, over {HORIZON:,} steps or more"

    @property
    def is_worth_telling(self) -> bool:
        """Whether a change of level matters by its size, or cost something before it was over."""
        return self.shift is None or self.size_s >= MATERIAL * self.shift.before_s or self.is_material
