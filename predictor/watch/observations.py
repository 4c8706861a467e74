"""Observations: one step of the whole run, with what every rank, counter and device told about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite

from predictor.watch.events import COMMUNICATION, PARTS, RUN_QUEUE_SECONDS, DeviceSample, Step

MOST_RANKS = 1024  # kept apart; further ones are not
_OWN = tuple(part for part in PARTS if part != COMMUNICATION)
_LAST = 64  # steps that the usual profile remembers
THERMAL = "thermal"

# Names of facts beside those of parts and counters.
SECONDS, TOKENS, SAMPLES, SEQUENCE, MEMORY, MEMORY_SHARE = (
    "seconds", "tokens", "samples", "sequence_length", "memory_bytes", "memory_share",
)  # fmt: skip
CLOCK = "clock_mhz"
HOT, CAPPED = "hot:", "capped:"  # with a device's name: 1 where it states the limit
MESSAGE = "message:"  # with its kind: 1; a step without it had none


@dataclass(slots=True)
class Observation:
    """One step of the run.

    Attributes:
        number, seconds, steps, at: as of a ``Step``.
        facts: of the run by name: parts, counters' increments per step, tokens, memory, messages, devices.
        ranks: the same by rank: parts and increments.
        activities: that ran at the step.
    """

    number: int
    seconds: float
    steps: int = 1
    at: float | None = None
    facts: dict[str, float] = field(default_factory=dict)
    ranks: dict[int, dict[str, float]] = field(default_factory=dict)
    activities: frozenset[str] = frozenset()

    def dominant(self, usual: Profile) -> str:
        """Return the part that most of the time above the usual one went to; "" where no part has half of it."""
        extra = self.seconds - usual.run.get(SECONDS, self.seconds)
        parts = {part: self.facts[part] - usual.run.get(part, 0.0) for part in PARTS if part in self.facts}
        if not parts or extra <= 0:
            return ""
        part = max(parts, key=lambda name: parts[name])
        return part if parts[part] >= extra / 2 else ""


@dataclass(slots=True)
class Profile:
    """Means of facts over steps; with ``last``, decaying over so many."""

    last: int | None = None
    count: int = 0
    run: dict[str, float] = field(default_factory=dict)
    ranks: dict[int, dict[str, float]] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def add(self, observation: Observation) -> None:
        """Add a step."""
        self.count += 1
        facts = observation.facts | {SECONDS: observation.seconds}
        for name, value in facts.items():
            before = self.count - 1 if name.startswith(MESSAGE) else 0
            seen = self._seen[name] = self._seen.get(name, before) + 1
            self._move(self.run, name, value, seen)
        for name in self.run.keys() - facts.keys():
            if name.startswith(MESSAGE) or name in PARTS:
                seen = self._seen[name] = self._seen.get(name, 0) + 1
                self._move(self.run, name, 0.0, seen)
        for rank, values in observation.ranks.items():
            if rank not in self.ranks and len(self.ranks) >= MOST_RANKS:
                continue
            mine = self.ranks.setdefault(rank, {})
            for name, value in values.items():
                self._move(mine, name, value, self.count)

    def _move(self, means: dict[str, float], name: str, value: float, seen: int) -> None:
        weight = seen if self.last is None else min(seen, self.last)
        before = means.get(name, 0.0 if name.startswith(MESSAGE) else value)
        means[name] = before + (value - before) / weight

    def copy(self) -> Profile:
        """Return a frozen copy."""
        ranks = {rank: dict(values) for rank, values in self.ranks.items()}
        return Profile(self.last, self.count, dict(self.run), ranks, dict(self._seen))


def usual_profile() -> Profile:
    """Return an empty profile of recent steps."""
    return Profile(last=_LAST)


def own_seconds(values: Mapping[str, float]) -> float:
    """Return the time that a rank worked itself: all parts but communication."""
    return sum(values.get(part, 0.0) for part in _OWN)


def facts_of(step: Step, before: Mapping[str, float]) -> dict[str, float]:
    """Return the facts that a step states; counters as increments per step since ``before``."""
    facts = {name: seconds for name, seconds in step.parts.items() if name in PARTS and isfinite(seconds)}
    for name, value in step.counters.items():
        if name in before and isfinite(value) and value >= before[name]:
            facts[name] = (value - before[name]) / max(step.steps, 1)
    stated = {TOKENS: step.tokens, SAMPLES: step.samples, SEQUENCE: step.sequence_length, MEMORY: step.memory_bytes}
    facts.update({name: float(value) for name, value in stated.items() if value is not None and isfinite(value)})
    if step.memory_bytes is not None and step.memory_limit_bytes:
        facts[MEMORY_SHARE] = step.memory_bytes / step.memory_limit_bytes
    return facts


def join_ranks(ranks: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the run's facts of its ranks: parts and waiting for a CPU of the busiest rank, the largest of the rest."""
    if not ranks:
        return {}
    busiest = max(ranks, key=lambda rank: own_seconds(ranks[rank]))
    facts: dict[str, float] = {}
    for values in ranks.values():
        for name, value in values.items():
            if name not in PARTS:
                facts[name] = max(facts.get(name, value), value)
    facts.update({name: value for name, value in ranks[busiest].items() if name in (*PARTS, RUN_QUEUE_SECONDS)})
    if COMMUNICATION in facts:
        facts[COMMUNICATION] = min(values.get(COMMUNICATION, 0.0) for values in ranks.values())
    return facts


def devices_facts(samples: Collection[DeviceSample]) -> dict[str, float]:
    """Return facts of the devices' readings since the last step: which are limited, and the lowest clock."""
    facts: dict[str, float] = {}
    for sample in samples:
        name = f"GPU {sample.device} of {sample.host}" if sample.host else f"GPU {sample.device}"
        facts[HOT + name] = float(any(THERMAL in reason for reason in sample.throttle_reasons))
        facts[CAPPED + name] = float(_is_capped(sample))
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    return facts | {CLOCK: min(clocks)} if clocks else facts


def _is_capped(sample: DeviceSample) -> bool:
    drawn, limit = sample.power_w, sample.power_limit_w
    reaches_limit = drawn is not None and limit is not None and drawn >= limit
    return reaches_limit or any("power" in reason for reason in sample.throttle_reasons)
