"""A log format: which lines state steps, checkpoints, evaluations and beginnings, and what their words mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from predictor.watch.readers import names
from predictor.watch.readers.names import GIB, LARGEST, NAMES, NUMBER, PER_SECOND, Meaning, number

MOST_FIELDS = 60
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
    if text is None:
        return
    try:
        value = float(text)
    except ValueError:
        if (other := number(text)) is None:
            return
        value = other
    name, factor = meaning
    if -LARGEST < value < LARGEST or name == "loss":
        values[name] = value * factor


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
    """Reads lines of ``key: value`` between bars; a pattern made of the line before reads all values at once."""

    def __init__(self, head: str) -> None:
        """Take the pattern of the step's number and the target, in groups ``step`` and ``target``."""
        self._head = re.compile(head.encode())
        self._layout = re.compile(rb"(?!)")
        self._names: list[str] = []
        self._scaled: list[Meaning] = []

    def __call__(self, line: bytes) -> Values | None:
        """Return the values of a line; None of another one."""
        found = self._layout.match(line)
        if found is not None:
            try:
                values = dict(zip(self._names, map(float, found.groups()), strict=True))
            except ValueError:  # text in place of a number
                return self._learn(line)
            for name, factor in self._scaled:
                values[name] *= factor
            return values
        return self._learn(line) if self._head.search(line) is not None else None

    def _learn(self, line: bytes) -> Values:
        """Return the values of a line with other fields, or with text among them, and note its layout."""
        values: Values = {}
        pattern, meanings = [], []
        for field in line.split(b"|")[: MOST_FIELDS + 1]:
            head = self._head.search(field)
            key, between, text = field.partition(b":")
            meaning = NAMES.get(key.decode("utf-8", "replace").strip())
            if head is not None:
                pattern.append(rb"[^|]*?" + self._head.pattern + rb"[^|]*")
                for name in self._head.groupindex:
                    put(values, GROUPS[name], head[name])
                    meanings.append(GROUPS[name])
            elif between and meaning is not None:
                pattern.append(re.escape(key) + rb":([^|]*)")
                put(values, meaning, text)
                meanings.append(meaning)
            else:
                pattern.append(rb"[^|]*")
        if len(pattern) <= MOST_FIELDS and sum(meaning.name == NUMBER for meaning in meanings) <= 2:
            self._layout = re.compile(rb"\|".join(pattern))
            self._names = [meaning.name for meaning in meanings]
            self._scaled = [meaning for meaning in dict.fromkeys(meanings) if meaning.factor != 1]
        return values


class Timers:
    """Reads lines of Megatron-LM's timers, ``name ....: (min, max)`` or ``name ....: max`` in milliseconds."""

    def __init__(self, names_read: Iterable[str]) -> None:
        """Take the names of the timers that are read."""
        self._meanings = {name.encode(): NAMES[name] for name in names_read}

    def __call__(self, line: bytes) -> Values | None:
        """Return the slowest rank's time; None of another line."""
        name, dots, value = line.partition(b" ..")
        meaning = self._meanings.get(name[name.rfind(b" ") + 1 :])
        if not dots or meaning is None:
            return None
        values: Values = {}
        put(values, meaning, value[value.rfind(b" ") + 1 :].rstrip(b")"))
        return values


class KeyValue:
    """Reads lines of one key and its value, by a pattern with groups ``key`` and ``value``."""

    def __init__(self, pattern: str, meanings: Mapping[str, Meaning] = NAMES) -> None:
        """Take the pattern of the line."""
        self._pattern = re.compile(pattern.encode())
        self._meanings = meanings

    def __call__(self, line: bytes) -> Values | None:
        """Return the value of a line; None of an unknown key."""
        found = self._pattern.search(line)
        meaning = self._meanings.get(found["key"].decode("utf-8", "replace").strip()) if found else None
        if found is None or meaning is None:
            return None
        values: Values = {}
        put(values, meaning, found["value"])
        return values


@dataclass(frozen=True, slots=True)
class Rule:
    """Lines beside those of steps.

    Attributes:
        word: that every such line has.
        pattern: of the line, with groups ``step``, ``ms`` or ``seconds``, and of a start ``resumed`` (the last step
            that was done) or ``first`` (the next), ``world``, ``target``, ``hosts`` and ``batch``.
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
        guard: what every such line has; the words are looked for where it is.
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
    guard: str = ""
    is_block: bool = False
    tells: re.Pattern[bytes] | None = None
