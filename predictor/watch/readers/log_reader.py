"""Reader of text logs: blocks of bytes in, events out, by the rules of one format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from predictor.watch.events import CHECKPOINT, EVALUATION, PARTS, Activity, End, Event, Message
from predictor.watch.readers import messages, names, prefix
from predictor.watch.readers.lines import LineFinder
from predictor.watch.readers.log_format import END, GROUPS, KNOWN, START, Extract, LogFormat, Rule, Values, put
from predictor.watch.readers.names import number
from predictor.watch.readers.tracker import StepTracker, text

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
        words: list[str] = []
        self._actions: list[Callable[[bytes], Iterator[Event]]] = []
        words += log_format.words
        self._actions += [self._of_step(log_format.extract())] * len(log_format.words)
        if log_format.of_member is not None:
            words += log_format.members
            self._actions += [self._of_member(log_format.of_member())] * len(log_format.members)
        for rule in (*log_format.rules, *messages.RULES):
            words.append(rule.word)
            self._actions.append(self._of_rule(rule))
        self._lines = LineFinder([word.encode() for word in words])
        self._held: _Held | None = None
        self._before: Values = {}  # stated before the line of the step
        self._holds = log_format.is_block
        self._is_block = log_format.is_block
        # Lines of a step: the latest, the last one of the step before, and the one that has closed two in a row.
        self._latest = self._last = self._closing = ""

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of a block."""
        for line, index in self._lines.feed(block):
            yield from self._actions[index](prefix.COLOUR.sub(b"", line) if b"\x1b" in line else line)

    def finish(self) -> Iterator[Event]:
        """Return the events of what waits for more to come."""
        for line, index in self._lines.finish():
            yield from self._actions[index](prefix.COLOUR.sub(b"", line) if b"\x1b" in line else line)
        yield from self._release()

    def _rank_of(self, line: bytes) -> int | None:
        found = prefix.rank(line)
        return self._rank if found is None else found

    def _of_step(self, extract: Extract) -> Callable[[bytes], Iterator[Event]]:
        def act(line: bytes) -> Iterator[Event]:
            values = extract(line)
            if values is None or not (names.NUMBER in values or self._is_block):
                return
            yield from self._release()
            self._closing = self._latest if self._latest == self._last else ""
            self._last = self._latest
            if self._before:
                values, self._before = self._before | values, {}
            at, rank = values.pop(names.AT, None), values.pop(names.RANK, None)
            step = _Held(
                values,
                self._clock.at(line) if at is None else at,
                self._rank_of(line) if rank is None else int(rank),
            )
            self._latest = ""
            if self._holds:
                self._held = step
            else:
                yield from self._events(step)

        return act

    def _of_member(self, extract: Extract) -> Callable[[bytes], Iterator[Event]]:
        def act(line: bytes) -> Iterator[Event]:
            values = extract(line)
            if not values:
                return
            key = next(iter(values))
            if key in BETWEEN_STEPS:
                yield from self._release()
                part = key.removeprefix(names.PART)
                yield Activity(part, self._tracker.number, values[key], at=self._clock.at(line))
                return
            if not self._holds:
                self._holds = True  # the first step with such lines was reported without them
                return
            self._latest = key
            if self._held is None:
                return
            self._held.values.update(values)
            if key == self._closing:
                yield from self._release()

        return act

    def _of_rule(self, rule: Rule) -> Callable[[bytes], Iterator[Event]]:
        def act(line: bytes) -> Iterator[Event]:
            found = rule.pattern.search(line)
            if found is None:
                return
            groups = found.groupdict()
            if rule.kind == START:
                yield from self._release()
                self._tracker.start(**_known(groups, self._clock.at(line)))
                self._note(groups)
            elif rule.kind == KNOWN:
                self._note(groups)
            elif rule.kind == END:
                yield from self._release()
                state = groups.get("state")
                named = messages.STATES.get(state.decode(), state.decode()) if state else rule.says
                yield End(named, self._clock.at(line))
            elif rule.kind in PARTS:
                yield from self._release()
                at = self._clock.at(line)
                yield Activity(rule.kind, self._step_of(groups), _seconds(groups), rule.in_step, at)
            else:
                rank = self._rank_of(line)
                yield Message(rule.kind, text(line), self._tracker.number, self._clock.at(line), rank)

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

    def _release(self) -> Iterator[Event]:
        if self._held is not None:
            held, self._held = self._held, None
            yield from self._events(held)

    def _events(self, step: _Held) -> Iterator[Event]:
        count = step.values.pop(names.NUMBER, None)
        if count is not None:
            yield from self._tracker.step(int(count), step.values, step.at, step.rank)


def _known(groups: Mapping[str, bytes | None], at: float | None) -> dict[str, object]:
    """Return what a line says of a process that begins, as keywords of ``Start``."""
    found: dict[str, object] = {}
    for group, field in (("resumed", "resumed_step"), ("world", "world_size"), ("target", "target_step")):
        if (value := _integer(groups.get(group))) is not None:
            found[field] = value
    return found if at is None else found | {"at": at}


def _seconds(groups: Mapping[str, bytes | None]) -> float | None:
    for group, factor in (("seconds", 1.0), ("ms", 1e-3)):
        value = number(groups.get(group) or b"")
        if value is not None:
            return value * factor
    return None


def _integer(digits: bytes | None) -> int | None:
    value = number(digits or b"")
    return int(value) if value is not None and abs(value) < 1e18 else None
