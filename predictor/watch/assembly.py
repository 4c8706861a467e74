"""Assembly of observations from events: ranks of one step together, counters as increments, work beside the step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from predictor.watch.events import (
    CHECKPOINT,
    COMPILATION,
    EVALUATION,
    Activity,
    DeviceSample,
    Message,
    Step,
)
from predictor.watch.observations import MESSAGE, MOST_RANKS, Observation, devices_facts, facts_of, join_ranks

BESIDE_STEPS = (CHECKPOINT, EVALUATION, COMPILATION)  # activities that leave traces in the next steps' times
_AFTERMATH = 2  # steps after an activity that may carry its rest: the queue of launches is filled again
_PATIENCE = 2  # steps that a rank may report later than another
_MOST_PENDING = 64
_MOST_DEVICES = 4096


@dataclass(slots=True)
class Assembly:
    """Events in, observations out, in the order of steps."""

    _pending: dict[int, dict[int | None, tuple[Step, float | None, dict[str, float]]]] = field(default_factory=dict)
    _counters: dict[int | None, dict[str, float]] = field(default_factory=dict)
    _at: dict[int | None, float] = field(default_factory=dict)
    _active: deque[Activity] = field(default_factory=lambda: deque(maxlen=8))
    _messages: deque[Message] = field(default_factory=lambda: deque(maxlen=64))
    _devices: dict[tuple[str, str], DeviceSample] = field(default_factory=dict)  # by host and device
    _last: dict[int | None, int] = field(default_factory=dict)
    _emitted: int | None = None

    def take(self, event: Step | Activity | Message | DeviceSample) -> Iterator[Observation]:
        """Take an event and return the observations that it completes."""
        match event:
            case Activity():
                self._active.append(event)
            case Message():
                self._messages.append(event)
            case DeviceSample():
                device = event.host, event.device
                if device in self._devices or len(self._devices) < _MOST_DEVICES:
                    self._devices[device] = event
            case Step():
                yield from self._take_step(event)

    def restart(self) -> Iterator[Observation]:
        """Return what was pending, and forget the processes' counters."""
        yield from self.flush()
        self._counters.clear()
        self._at.clear()
        self._last.clear()
        self._emitted = None

    def is_restart(self, step: Step) -> bool:
        """Whether a step was taken before: the process resumed from a checkpoint."""
        return step.number < self._last.get(step.rank, step.number)

    def flush(self) -> Iterator[Observation]:
        """Return what is pending, complete or not."""
        for number in sorted(self._pending):
            yield from self._emit(number)

    def _take_step(self, step: Step) -> Iterator[Observation]:
        if step.rank is not None and step.rank >= MOST_RANKS:
            return
        self._last[step.rank] = step.number
        if self._emitted is not None and step.number <= self._emitted:
            return
        facts = facts_of(step, self._counters.get(step.rank, {}))
        if step.counters:
            self._counters[step.rank] = dict(step.counters)
        seconds = step.seconds
        if seconds is None and step.at is not None and step.rank in self._at:
            seconds = (step.at - self._at[step.rank]) / max(step.steps, 1)
        if step.at is not None:
            self._at[step.rank] = step.at
        self._pending.setdefault(step.number, {})[step.rank] = (step, seconds, facts)
        for number in sorted(self._ready(step.number)):
            yield from self._emit(number)

    def _ready(self, number: int) -> list[int]:
        """Return the pending steps that no further rank is awaited for: all that report lately, or a step too old."""
        awaited = {rank for rank, last in self._last.items() if last > number - _MOST_PENDING}
        if awaited <= self._pending[number].keys():
            return [at for at in self._pending if at <= number]
        return [at for at in self._pending if at < number - _PATIENCE]

    def _emit(self, number: int) -> Iterator[Observation]:
        reports = self._pending.pop(number)
        self._emitted = number
        ranks = {rank: facts for rank, (_, _, facts) in reports.items() if rank is not None}
        times = [seconds for rank, (_, seconds, _) in reports.items() if rank is not None and seconds is not None]
        whole = reports.get(None)
        step = whole[0] if whole else next(iter(reports.values()))[0]
        seconds = whole[1] if whole and whole[1] is not None else (median(times) if times else None)
        if seconds is None or not 0 < seconds < float("inf"):
            return
        facts = join_ranks(ranks) | (whole[2] if whole else {}) | devices_facts(self._devices.values())
        self._devices.clear()
        for message in self._messages:
            facts[MESSAGE + message.kind] = 1.0
        self._messages.clear()
        yield Observation(number, seconds, max(step.steps, 1), step.at, facts, ranks, self._activities(step))

    def _activities(self, step: Step) -> frozenset[str]:
        """Return the activities that ran at a step or just before it."""
        return frozenset(
            activity.part
            for activity in self._active
            if activity.part in BESIDE_STEPS
            and (activity.step is None or step.number - step.steps - _AFTERMATH < activity.step <= step.number)
        )
