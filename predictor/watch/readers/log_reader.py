"""Reader of text logs: blocks of bytes in, events out, by the rules of one format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from predictor.watch.events import CHECKPOINT, EVALUATION, PARTS, Activity, End, Event, Message
from predictor.watch.readers import messages, names, prefix
from predictor.watch.readers.lines import LineFinder
from predictor.watch.readers.log_format import END, GROUPS, KNOWN, START, Extract, LogFormat, Rule, Values, put
from predictor.watch.readers.names import LARGEST_STEP, number
from predictor.watch.readers.nodes import nodes
from predictor.watch.readers.tracker import StepTracker, text

Action = Callable[[bytes], Sequence[Event]]
BETWEEN_STEPS = {names.PART + CHECKPOINT, names.PART + EVALUATION}  # never a part of a step's lines


class _Held(NamedTuple):
    """A step whose further lines are to come."""

    values: Values
    at: float | None
    rank: int | None


class LogReader:
    """Reads a log of one format; cutting the log elsewhere changes no event."""

    def __init__(self, log_format: LogFormat, tracker: StepTracker | None = None, rank: int | None = None) -> None:
        """Begin a file, whose lines are of a rank unless they say otherwise.

        Args:
            log_format: of the file.
            tracker: of the files before it; None: it is the first.
            rank: of lines that state none.
        """
        if tracker is None:
            tracker = StepTracker()
            tracker.start(tool=log_format.tool)
        self._tracker = tracker
        self._rank = rank
        self._clock = prefix.Clock()
        by_word: dict[str, list[Action]] = {word: [] for word in log_format.words}
        step = self._of_step(log_format.extract())
        for actions in by_word.values():
            actions.append(step)
        for rule in (*log_format.rules, *messages.RULES):
            by_word.setdefault(rule.word, []).append(self._of_rule(rule))
        self._actions = list(by_word.values())
        if log_format.of_member is not None:
            self._actions += [[self._of_member(log_format.of_member())]] * len(log_format.members)
        self._lines = LineFinder(
            [word.encode() for word in by_word],
            guarded=[word.encode() for word in log_format.members],
            guard=log_format.guard.encode(),
        )
        self._held: _Held | None = None
        self._pause: tuple[str, int | None] = ("", None)  # the latest checkpoint or evaluation, and its step
        self._before: Values = {}  # stated before the line of the step
        self._holds = log_format.is_block
        self._is_block = log_format.is_block
        # Lines of a step: the latest, the last one of the step before, and the one that has closed two in a row.
        self._latest = self._last = self._closing = ""

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of a block."""
        return self._events(self._lines.feed(block))

    def settle(self) -> Iterator[Event]:
        """Return the step whose further lines do not come; a line that is not ended may go on."""
        yield from self._release()

    def finish(self) -> Iterator[Event]:
        """Return the events of what waits for more to come.

        Of lines without an end a bar is read, which has none; another one may be cut in the middle of a number.
        """
        yield from self._events((line, index) for line, index in self._lines.finish() if b"%|" in line)
        yield from self._release()

    def _events(self, lines: Iterable[tuple[bytes, int]]) -> Iterator[Event]:
        actions = self._actions
        for line, index in lines:
            plain = prefix.COLOUR.sub(b"", line) if b"\x1b" in line else line
            for act in actions[index]:
                yield from act(plain)

    def _rank_of(self, line: bytes) -> int | None:
        found = prefix.rank(line)
        return self._rank if found is None else found

    def _of_step(self, extract: Extract) -> Action:
        def act(line: bytes) -> Sequence[Event]:
            values = extract(line)
            if values is None or not (names.NUMBER in values or self._is_block):
                return ()
            events = self._release()
            self._closing = self._latest if self._latest == self._last else ""
            self._last = self._latest
            if self._before:
                values, self._before = self._before | values, {}
            at, rank = values.pop(names.AT, None), values.pop(names.RANK, None)
            self._latest = ""
            at = self._clock.at(line) if at is None else at
            rank = self._rank_of(line) if rank is None else int(rank)
            if self._holds:
                self._held = _Held(values, at, rank)
                return events
            step = self._step(values, at, rank)
            return [*events, *step] if events else step

        return act

    def _of_member(self, extract: Extract) -> Action:
        def act(line: bytes) -> Sequence[Event]:
            values = extract(line)
            if not values:
                return ()
            key = next(iter(values))
            if key in BETWEEN_STEPS:
                part = key.removeprefix(names.PART)
                events = self._release()
                self._pause = part, self._tracker.number
                return [*events, Activity(*self._pause, values[key], at=self._clock.at(line))]
            if not self._holds:
                self._holds = True  # the first step with such lines was reported without them
                return ()
            self._latest = key
            if self._held is None:
                return ()
            self._held.values.update(values)
            return self._release() if key == self._closing else ()

        return act

    def _of_rule(self, rule: Rule) -> Action:
        def act(line: bytes) -> Sequence[Event]:
            found = rule.pattern.search(line)
            if found is None:
                return ()
            groups, at = found.groupdict(), self._clock.at(line)
            if rule.kind == KNOWN:
                self._note(groups)
                return ()
            events = self._release()
            if rule.kind == START:
                self._tracker.start(**_known(groups, at))
                self._note(groups)
                return events
            if rule.kind == END:
                state = groups.get("state")
                named = messages.STATES.get(state.decode(), state.decode()) if state else rule.says
                return [*events, End(named, at)]
            if rule.kind in PARTS:
                pause, seconds = (rule.kind, self._step_of(groups)), _seconds(groups)
                is_repeated, self._pause = seconds is None and pause == self._pause, pause
                return events if is_repeated else [*events, Activity(*pause, seconds, rule.in_step, at)]
            return [*events, Message(rule.kind, text(line), self._tracker.number, at, self._rank_of(line))]

        return act

    def _step_of(self, groups: Mapping[str, bytes | None]) -> int | None:
        step = _integer(groups.get("step"))
        return self._tracker.number if step is None else step

    def _note(self, groups: Mapping[str, bytes | None]) -> None:
        """Keep what a log says once for all its steps, or before a step."""
        if (batch := groups.get("batch")) is not None:
            self._tracker.batch = number(batch)
        if (memory := number(groups.get("memory_mib") or b"")) is not None and memory < 1e12:
            self._tracker.memory_bytes = max(memory * 2**20, self._tracker.memory_bytes or 0.0)
        put(self._before, GROUPS["tflops"], groups.get("tflops"))

    def _release(self) -> Sequence[Event]:
        if self._held is None:
            return ()
        held, self._held = self._held, None
        return self._step(*held)

    def _step(self, values: Values, at: float | None, rank: int | None) -> list[Event]:
        if not isfinite(sum(values.values())):
            values = {name: value for name, value in values.items() if isfinite(value) or name == "loss"}
        count = values.pop(names.NUMBER, LARGEST_STEP)
        return self._tracker.step(int(count), values, at, rank) if 0 <= count < LARGEST_STEP else []


def _known(groups: Mapping[str, bytes | None], at: float | None) -> dict[str, object]:
    """Return what a line says of a process that begins, as keywords of ``Start``."""
    found: dict[str, object] = {}
    for group, field in (("resumed", "resumed_step"), ("world", "world_size"), ("target", "target_step")):
        if (value := _integer(groups.get(group))) is not None:
            found[field] = value
    if first := _integer(groups.get("first")):
        found["resumed_step"] = first - 1 or None
    if (hosts := groups.get("hosts")) is not None:
        found["hosts"] = nodes(hosts.decode("utf-8", "replace"))
    return found if at is None else found | {"at": at}


def _seconds(groups: Mapping[str, bytes | None]) -> float | None:
    for group, factor in (("seconds", 1.0), ("ms", 1e-3)):
        value = number(groups.get(group) or b"")
        if value is not None and isfinite(value):
            return value * factor
    return None


def _integer(digits: bytes | None) -> int | None:
    value = number(digits or b"")
    return int(value) if value is not None and abs(value) < 1e18 else None
