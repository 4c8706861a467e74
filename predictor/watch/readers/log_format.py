"""A log format: which lines state steps, checkpoints, evaluations and beginnings, and what their words mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictor.watch.readers import names
from predictor.watch.readers.names import GIB, NAMES, NUMBER, PER_SECOND, Meaning, number

Values = dict[str, float]
Extract = Callable[[bytes], Values | None]

# Named groups of patterns: ours and those of --pattern.
GROUPS: Mapping[str, Meaning] = {
    "step": Meaning(NUMBER),
    "target": Meaning(names.TARGET),
    "seconds": Meaning("seconds"),
    "ms": Meaning("seconds", 1e-3),
    "us": Meaning("seconds", 1e-6),
    "it_per_s": Meaning(PER_SECOND),
    "train_seconds": Meaning(names.TRAIN_SECONDS),
    "train_ms": Meaning(names.TRAIN_SECONDS, 1e-3),
    "loss": Meaning("loss"),
    "tokens": Meaning("tokens"),
    "tokens_per_s": Meaning(names.TOKENS_PER_SECOND),
    "consumed_tokens": Meaning(names.CONSUMED_TOKENS),
    "samples": Meaning("samples"),
    "samples_per_s": Meaning(names.SAMPLES_PER_SECOND),
    "consumed_samples": Meaning(names.CONSUMED_SAMPLES),
    "sequence_length": Meaning("sequence_length"),
    "memory_gib": Meaning("memory_bytes", GIB),
    "memory_mib": Meaning("memory_bytes", 2.0**20),
    "memory_percent": Meaning(names.MEMORY_SHARE, 1e-2),
    "tflops": Meaning("flops_per_second", 1e12),
    "data_s": Meaning(names.PART + "data"),
    "skipped": Meaning(names.SKIPPED),
}
NOT_VALUES = frozenset({"time", "rank"})  # groups with a time stamp and a rank


def put(values: Values, meaning: Meaning, text: bytes | None) -> None:
    """Add a value in its unit; what is no number is left out, and what is infinite but for the loss."""
    value = None if text is None else number(text)
    if value is not None and (abs(value) < 1e300 or meaning.name == "loss"):
        values[meaning.name] = value * meaning.factor


def groups(pattern: str) -> Extract:
    """Return what reads the named groups of a pattern."""
    compiled = re.compile(pattern.encode())
    meanings = [(name, GROUPS[name]) for name in compiled.groupindex if name not in NOT_VALUES]

    def extract(line: bytes) -> Values | None:
        found = compiled.search(line)
        if found is None:
            return None
        values: Values = {}
        for name, meaning in meanings:
            put(values, meaning, found[name])
        return values

    return extract


class Fields:
    """Reads lines of ``key: value`` between bars: the places of known keys are those of the line before."""

    def __init__(self, head: str, separator: bytes = b"|", between: bytes = b":") -> None:
        """Take the pattern of the step's number and the target, in groups ``step`` and ``target``."""
        self._head = re.compile(head.encode())
        self._separator, self._between = separator, between
        self._count = -1
        self._places: tuple[tuple[int, bytes, int, Meaning], ...] = ()

    def __call__(self, line: bytes) -> Values | None:
        """Return the values of a line; None of another one."""
        head = self._head.search(line)
        if head is None:
            return None
        values: Values = {}
        for name in self._head.groupindex:
            put(values, GROUPS[name], head[name])
        fields = line.split(self._separator)
        places = self._places
        if len(fields) != self._count or any(not fields[place].startswith(key) for place, key, _, _ in places):
            places = self._learn(fields)
        for place, _, begin, meaning in places:
            put(values, meaning, fields[place][begin:])
        return values

    def _learn(self, fields: list[bytes]) -> tuple[tuple[int, bytes, int, Meaning], ...]:
        found = []
        for place, field in enumerate(fields):
            key, between, _ = field.partition(self._between)
            meaning = NAMES.get(key.decode("utf-8", "replace").strip())
            if between and meaning is not None:
                found.append((place, key + between, len(key) + len(between), meaning))
        self._count, self._places = len(fields), tuple(found)
        return self._places


class KeyValue:
    """Reads lines of one key and its value, by a pattern with groups ``key``, ``value`` and ``or`` (also the value)."""

    def __init__(self, pattern: str, meanings: Mapping[str, Meaning] = NAMES) -> None:
        """Take the pattern of the line."""
        self._pattern = re.compile(pattern.encode())
        self._has_or = "or" in self._pattern.groupindex
        self._meanings = meanings

    def __call__(self, line: bytes) -> Values | None:
        """Return the value of a line; None of an unknown key."""
        found = self._pattern.search(line)
        meaning = self._meanings.get(found["key"].decode("utf-8", "replace").strip()) if found else None
        if found is None or meaning is None:
            return None
        values: Values = {}
        put(values, meaning, found["value"] or (found["or"] if self._has_or else None))
        return values


@dataclass(frozen=True, slots=True)
class Rule:
    """Lines beside those of steps.

    Attributes:
        word: that every such line has.
        pattern: of the line, with groups ``step``, ``ms`` or ``seconds``, and of a start ``resumed``, ``world``,
            ``target`` and ``batch``.
        kind: a part of the step (``CHECKPOINT``, ``EVALUATION`` …), ``START``, ``END``, ``KNOWN`` (what a log says
            once), or a kind of message.
        says: state of an end, where the pattern has no group ``state``.
        in_step: the time is inside that of a step.
    """

    word: str
    pattern: re.Pattern[bytes]
    kind: str
    says: str = ""
    in_step: bool = False


START = "start"
END = "end"
KNOWN = "known"


def rule(kind: str, word: str, pattern: str = "", says: str = "", in_step: bool = False) -> Rule:
    """Return a rule; without a pattern the word is enough."""
    return Rule(word, re.compile((pattern or re.escape(word)).encode()), kind, says, in_step)


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format of text logs.

    Attributes:
        name: as messages have it.
        tool: that writes it, as ``Start.tool``.
        versions: whose logs are read.
        produced: where the tool's source writes the lines.
        example: a file of ``examples/``, written after that source.
        words, extract: words of which lines of a step have one (an empty one: any line), and what reads such a line.
        rules: further lines.
        members, of_member: words of lines that follow a step and belong to it, and what reads them.
        is_block: a step is stated by several lines, of which the first has its number.
        tells: a pattern that tells the format; None: a line of a step does.
    """

    name: str
    tool: str
    versions: str
    produced: str
    example: str
    words: tuple[str, ...]
    extract: Callable[[], Extract]
    rules: tuple[Rule, ...] = ()
    members: tuple[str, ...] = ()
    of_member: Callable[[], Extract] | None = None
    is_block: bool = False
    tells: re.Pattern[bytes] | None = None
