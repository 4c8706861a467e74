"""Steps of a run from the values that its log states: intervals, differences of counters, restarts, ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from predictor.watch.events import NOT_FINITE, Event, Message, Start, Step
from predictor.watch.events import SKIPPED as SKIPPED_UPDATE
from predictor.watch.readers.names import (
    CONSUMED_SAMPLES,
    CONSUMED_TOKENS,
    MEMORY_SHARE,
    NAMES,
    PER_SECOND,
    SAMPLES_PER_SECOND,
    SKIPPED,
    TARGET,
    TOKENS_PER_SECOND,
    TRAIN_SECONDS,
)

LONGEST_TEXT = 200
MOST_RANKS = 1 << 17
PLAIN = frozenset(meaning.name for meaning in NAMES.values() if ":" not in meaning.name)


class Job(NamedTuple):
    """A job of a run: when it began, where that is known, and its nodes."""

    at: float | None
    hosts: tuple[str, ...]


class _Last(NamedTuple):
    """The step before, of one rank."""

    number: int
    steps: int
    values: Mapping[str, float]


class StepTracker:
    """Turns the values of one log, or of several logs of one run after another, into events.

    The rank that logs steps first speaks for the run. Steps of other ranks keep their rank, and once there are some,
    the speaker's are reported for its rank too.
    """

    def __init__(self, speaks: bool = True) -> None:
        """Begin without a step.

        Args:
            speaks: a rank speaks for the run; else every step keeps its rank, and no start is reported.
        """
        self._speaks = speaks
        self._last: dict[int | None, _Last] = {}
        self._start: Start | None = None
        self._speaker: int | None = None
        self._is_new_file = False
        self.batch: float | None = None  # samples of a step, where the log says it once
        self.memory_bytes: float | None = None  # the same
        self.jobs: list[Job] = []  # of the run, as accounting or node lists have them
        self._starts = 0

    @property
    def number(self) -> int | None:
        """Return the run's last step."""
        last = self._last.get(self._speaker)
        return None if last is None else last.number

    def start(self, **known: object) -> None:
        """Note what a banner says of a process that begins; it is reported before the next step."""
        if self._speaks:
            self._start = replace(self._start or Start(), **known)  # type: ignore[arg-type]

    def begin_file(self) -> None:
        """Note that what follows is from another file: a step that was there before is one of a restart."""
        self._is_new_file = True

    def step(
        self, number: int, values: Mapping[str, float], at: float | None = None, rank: int | None = None
    ) -> list[Event]:
        """Return the events of a step that a log states; none where it was stated before."""
        starts = self._start is not None
        if starts or not self._last:
            self._last.clear()
            self._speaker = rank
        elif rank not in self._last and len(self._last) >= MOST_RANKS:
            return []
        speaks = self._speaks and rank == self._speaker
        last = self._last.get(rank)
        if last is not None and number <= last.number and not starts:
            # The same step in other words, or a late rank without a prefix; else the run went on from a checkpoint.
            if number >= last.number - last.steps and not self._is_new_file:
                return []
            if speaks:
                self._start, starts = Start(at=at), True
            last = None
        self._is_new_file = self._is_new_file and last is None and not starts
        events: list[Event] = []
        resumed = None
        if self._start is not None:
            start, self._start = self._start, None
            if (target := values.get(TARGET)) is not None:
                start = replace(start, target_step=int(target))
            resumed = start.resumed_step
            events.append(start if start.hosts else replace(start, hosts=self._hosts(start.at or at)))
            self._starts += 1
        covered = number - last.number if last is not None else number - resumed if resumed is not None else 1
        steps = covered if covered > 0 else 1
        step = self._built(number, steps, values, last, at, None if speaks else rank)
        events.append(step)
        if speaks and len(self._last) > 1 and rank is not None:
            events.append(replace(step, rank=rank))
        self._last[rank] = _Last(number, steps, values)
        if step.loss is None and (loss := values.get("loss")) is not None:
            events.append(Message(NOT_FINITE, f"loss is {loss} at step {number}", number, at, step.rank))
        if values.get(SKIPPED):
            events.append(Message(SKIPPED_UPDATE, f"{values[SKIPPED]:g} skipped updates", number, at, step.rank))
        return events

    def _hosts(self, at: float | None) -> tuple[str, ...]:
        """Return the nodes of the job that runs at a time; without times, of as many jobs as there were starts."""
        begun = [job for job in self.jobs if at is not None and job.at is not None and job.at <= at]
        if not begun and self.jobs:
            begun = self.jobs[: self._starts + 1]
        return begun[-1].hosts if begun else ()

    def _built(
        self,
        number: int,
        steps: int,
        values: Mapping[str, float],
        last: _Last | None,
        at: float | None,
        rank: int | None,
    ) -> Step:
        get = values.get
        before: Mapping[str, float] = last.values if last is not None else {}
        samples = get("samples", self.batch)
        seconds = get("seconds")
        if seconds is None:
            seconds = _derived_seconds(values, before, steps, samples)
        if seconds is not None and not 0 < seconds < inf:
            seconds = None
        tokens = get("tokens")
        if tokens is None and (consumed := get(CONSUMED_TOKENS)) is not None:
            tokens = _grown(consumed, before.get(CONSUMED_TOKENS), steps)
        if samples is None and (consumed := get(CONSUMED_SAMPLES)) is not None:
            samples = _grown(consumed, before.get(CONSUMED_SAMPLES), steps)
        if seconds is not None:
            if tokens is None and (rate := get(TOKENS_PER_SECOND)) is not None:
                tokens = rate * seconds
            if samples is None and (rate := get(SAMPLES_PER_SECOND)) is not None:
                samples = rate * seconds
        memory, limit, loss = get("memory_bytes", self.memory_bytes), get("memory_limit_bytes"), get("loss")
        if limit is None and memory is not None and (share := get(MEMORY_SHARE)):
            limit = memory / share
        length = get("sequence_length")
        parts, counters = _groups(values)
        return Step(
            number,
            seconds,
            steps,
            at,
            rank,
            tokens,
            samples,
            None if length is None else int(length),
            memory,
            limit,
            parts,
            counters,
            loss if loss is not None and -inf < loss < inf else None,
            get("flops_per_second"),
        )


def _derived_seconds(
    values: Mapping[str, float], before: Mapping[str, float], steps: int, samples: float | None
) -> float | None:
    """Return the time of a step that a log states as a rate, or as the time of the run so far."""
    if values.get(PER_SECOND):
        return 1 / values[PER_SECOND]
    if (trained := values.get(TRAIN_SECONDS)) is not None:
        return _grown(trained, before.get(TRAIN_SECONDS), steps)
    if samples and values.get(SAMPLES_PER_SECOND):
        return samples / values[SAMPLES_PER_SECOND]
    return None


def _grown(value: float, before: float | None, steps: int) -> float | None:
    """Return by how much a counter grew per step."""
    return None if before is None or value <= before else (value - before) / steps


def _groups(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts and the counters among values; most steps have none."""
    parts: dict[str, float] = {}
    counters: dict[str, float] = {}
    if PLAIN.issuperset(values):
        return parts, counters
    for meaning, value in values.items():
        kind, _, name = meaning.partition(":")
        if name:
            (parts if kind == "part" else counters)[name] = value
    return parts, counters


def text(line: bytes) -> str:
    """Return a line as a message quotes it."""
    return line.decode("utf-8", "replace").strip()[:LONGEST_TEXT]
