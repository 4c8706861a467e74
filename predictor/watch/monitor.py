"""Monitor: events of a run in, ``Health`` out, in bounded memory."""

from __future__ import annotations

from predictor.watch.assembly import Assembly
from predictor.watch.deviations import Deviations
from predictor.watch.events import Activity, DeviceSample, End, Event, Message, Start, Step
from predictor.watch.health import ChangeKind, Expected, Health, State
from predictor.watch.outlook import Outlook, Pauses

__all__ = ["Monitor"]


class Monitor:
    """Takes the events of a run in order and says how it stands."""

    def __init__(self, expected: Expected | None = None) -> None:
        """Start without a step seen, with the prediction of one."""
        self._assembly = Assembly()
        self._deviations = Deviations(expected)
        self._pauses = Pauses()
        self._hosts: tuple[str, ...] = ()
        self._target: int | None = None
        self._end: End | None = None
        self._restarts = 0
        self._first: int | None = None
        self._last: int | None = None
        self._steps = 0

    def compare_with(self, other: Health) -> None:
        """Take note of a run of the same plan: where its level changed too, the plan did."""
        changes = [finding.change for finding in other.findings]
        self._deviations.planned = [change for change in changes if change.kind is ChangeKind.JUMP]

    def take(self, event: Event) -> None:
        """Take an event."""
        self._pauses.take(event.at, isinstance(event, Start))
        match event:
            case Start():
                self._take_start(event)
            case End():
                self._end = event
            case Step():
                if self._assembly.is_restart(event):
                    self._take_start(Start(event.at, event.number - event.steps))
                self._end = None
                self._observe(event)
            case Activity() | Message() | DeviceSample():
                if isinstance(event, Activity):
                    self._deviations.take_activity(event)
                self._observe(event)

    def _observe(self, event: Step | Activity | Message | DeviceSample) -> None:
        for observation in self._assembly.take(event):
            self._steps += observation.steps
            self._first = observation.number if self._first is None else self._first
            self._last = observation.number
            self._deviations.observe(observation)

    def _take_start(self, start: Start) -> None:
        for observation in self._assembly.restart():
            self._last = observation.number
            self._steps += observation.steps
            self._deviations.observe(observation)
        self._target = start.target_step or self._target
        if self._last is not None:
            moved = bool(self._hosts and start.hosts and set(start.hosts) != set(self._hosts))
            resumed = start.resumed_step if start.resumed_step is not None else self._last
            self._restarts += 1
            self._deviations.restart(self._last, resumed, self._pauses.last_s, moved)
        self._hosts = self._deviations.hosts = start.hosts or self._hosts
        self._end = None

    def health(self, now: float | None = None) -> Health:
        """Return the state of the run; ``now`` in seconds since the epoch tells a stalled run."""
        deviations = self._deviations
        stalled = self._pauses.stalled_for(now, deviations.usual_s, self._last) if self._end is None else None
        findings = deviations.findings(self._last, stalled)
        slower = any(not finding.is_expected and finding.change.last_step is None for finding in findings)
        outlook = Outlook(self._last, self._target, self._pauses.last_at, deviations, findings)
        return Health(
            state=self._state(bool(stalled), slower),
            expected=deviations.expected,
            first_step=self._first,
            last_step=self._last,
            steps=self._steps,
            last_at=self._pauses.last_at,
            **outlook.numbers(),
            findings=findings,
            restarts=self._restarts,
            notes=outlook.notes(),
        )

    def _state(self, stalled: bool, slower: bool) -> State:
        if self._end is not None:
            return State.ENDED
        if stalled:
            return State.STALLED
        if self._last is None:
            return State.WAITING
        if self._deviations.usual_s is None:
            return State.WARMING_UP
        return State.SLOWER if slower else State.HEALTHY
