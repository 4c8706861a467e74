"""Steps of a run from the values that its log states: intervals, differences of counters, restarts, ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite

from predictor.watch.events import NOT_FINITE, SKIPPED, Event, Message, Start, Step
from predictor.watch.readers import names

LONGEST_TEXT = 200
MOST_RANKS = 1 << 17


@dataclass(slots=True)
class _Last:
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
        self.batch: float | None = None  # samples of a step, where the log says it once
        self.memory_bytes: float | None = None  # the same

    @property
    def number(self) -> int | None:
        """Return the run's last step."""
        last = self._last.get(self._speaker)
        return None if last is None else last.number

    def start(self, **known: object) -> None:
        """Note what a banner says of a process that begins; it is reported before the next step."""
        if self._speaks:
            self._start = replace(self._start or Start(), **known)  # type: ignore[arg-type]

    def step(
        self, number: int, values: Mapping[str, float], at: float | None = None, rank: int | None = None
    ) -> Iterator[Event]:
        """Return the events of a step that a log states; nothing where it was stated before."""
        starts = self._start is not None
        if starts or not self._last:
            self._last.clear()
            self._speaker = rank
        elif rank not in self._last and len(self._last) >= MOST_RANKS:
            return
        speaks = self._speaks and rank == self._speaker
        last = self._last.get(rank)
        if last is not None and number <= last.number and not starts:
            # The same step in other words, or a late rank without a prefix; else the run went on from a checkpoint.
            if number >= last.number - last.steps:
                return
            self._start, starts = (self._start or Start(at=at), True) if speaks else (self._start, False)
            last = None
        if starts:
            start, self._start = self._start, None
            assert start is not None
            if (target := values.get(names.TARGET)) is not None:
                start = replace(start, target_step=int(target))
            yield start
            resumed = start.resumed_step
        else:
            resumed = None
        covered = number - last.number if last is not None else number - resumed if resumed is not None else 1
        steps = covered if covered > 0 else 1
        step = self._built(number, steps, values, last, at, None if speaks else rank)
        yield step
        if speaks and len(self._last) > 1 and rank is not None:
            yield replace(step, rank=rank)
        self._last[rank] = _Last(number, steps, values)
        if (loss := values.get("loss")) is not None and not isfinite(loss):
            yield Message(NOT_FINITE, f"loss is {loss} at step {number}", number, at, step.rank)
        if values.get(names.SKIPPED):
            yield Message(SKIPPED, f"{values[names.SKIPPED]:g} skipped updates", number, at, step.rank)

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
        seconds = get("seconds")
        samples = get("samples", self.batch)
        tokens = get("tokens")
        for meaning in values:
            if meaning == names.PER_SECOND and seconds is None and values[meaning] > 0:
                seconds = 1 / values[meaning]
            elif meaning == names.TRAIN_SECONDS and seconds is None:
                seconds = _grown(values[meaning], before.get(meaning), steps)
            elif meaning == names.SAMPLES_PER_SECOND and seconds is None and samples and values[meaning] > 0:
                seconds = samples / values[meaning]
            elif meaning == names.CONSUMED_SAMPLES and samples is None:
                samples = _grown(values[meaning], before.get(meaning), steps)
            elif meaning == names.CONSUMED_TOKENS and tokens is None:
                tokens = _grown(values[meaning], before.get(meaning), steps)
        if seconds is not None and not (isfinite(seconds) and seconds > 0):
            seconds = None
        if tokens is None and seconds is not None and names.TOKENS_PER_SECOND in values:
            tokens = values[names.TOKENS_PER_SECOND] * seconds
        if samples is None and seconds is not None and names.SAMPLES_PER_SECOND in values:
            samples = values[names.SAMPLES_PER_SECOND] * seconds
        memory, limit, loss = get("memory_bytes", self.memory_bytes), get("memory_limit_bytes"), get("loss")
        if limit is None and memory is not None and (share := get(names.MEMORY_SHARE)):
            limit = memory / share
        length = get("sequence_length")
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
            loss=loss if loss is not None and isfinite(loss) else None,
            flops_per_second=get("flops_per_second"),
            **_groups(values),
        )


def _grown(value: float, before: float | None, steps: int) -> float | None:
    """Return by how much a counter grew per step."""
    return None if before is None or value <= before else (value - before) / steps


def _groups(values: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """Return the parts and counters among values, as keywords of ``Step``; most steps have none."""
    groups: dict[str, dict[str, float]] = {}
    for meaning, value in values.items():
        if ":" in meaning:
            kind, _, name = meaning.partition(":")
            groups.setdefault("parts" if kind == "part" else "counters", {})[name] = value
    return dict(groups)


def text(line: bytes) -> str:
    """Return a line as a message quotes it."""
    return line.decode("utf-8", "replace").strip()[:LONGEST_TEXT]
