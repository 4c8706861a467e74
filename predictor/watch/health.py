"""Health of a run: the joint between the monitor and every report.

``Health`` is a value: a report renders it, a test compares it, a record stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """State of a run."""

    WAITING = "waiting for the first step"
    WARMING_UP = "warming up"
    HEALTHY = "healthy"
    SLOWER = "slower than it should be"
    STALLED = "no step for long"
    ENDED = "ended"


class ChangeKind(StrEnum):
    """Shape of a deviation in time."""

    SINGLE = "single"
    PERIODIC = "periodic"
    JUMP = "jump"
    DRIFT = "drift"
    IRREGULAR = "irregular"  # slow steps again and again, without a period
    WHOLE = "whole run"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected step time.

    Attributes:
        seconds, low_s, high_s: predicted step and its 90 % interval, before the run's own steps were seen.
        calibrated_s, calibrated_low_s, calibrated_high_s: after its first healthy steps.
        parts: predicted seconds of the step by part of the breakdown.
        tokens, samples, sequence_length: of one step.
        flops: of the model in one step, all GPUs together; ``peak_flops_per_second`` of all GPUs.
        memory_bytes, memory_limit_bytes: of the fullest GPU.
        source: system and configuration, in words.
    """

    seconds: float
    low_s: float
    high_s: float
    calibrated_s: float | None = None
    calibrated_low_s: float | None = None
    calibrated_high_s: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    tokens: float | None = None
    samples: float | None = None
    sequence_length: int | None = None
    flops: float | None = None
    peak_flops_per_second: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    num_gpus: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A deviation in time.

    Attributes:
        kind: its shape.
        first_step, last_step: of the deviation; ``last_step`` None: it goes on; of a stall, ``first_step`` is the last
            that was seen.
        period: steps between occurrences of a periodic one.
        occurrences: slow steps.
        level_s: usual step before it (of a whole run: the expected one).
        extra_s: seconds per affected step, in the mean.
        lost_s: seconds so far.
    """

    kind: ChangeKind
    first_step: int
    last_step: int | None
    level_s: float
    extra_s: float
    lost_s: float
    occurrences: int = 1
    period: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause of a change with its evidence.

    Attributes:
        cause: key of ``causes``; "not explained" is one.
        title: the cause in words.
        belief: posterior probability among all causes, "not explained" included.
        evidence: sentences, each a fact of the log.
        distinguish: what would tell it from the next one.
        remedy: what to do.
    """

    cause: str
    title: str
    belief: float
    evidence: tuple[str, ...] = ()
    distinguish: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A change and its explanations, the most probable first.

    Attributes:
        change: in time.
        explanations: at least one.
        is_expected: of a kind that a healthy run shows (compilation, evaluation, checkpoints, a restart): no alarm.
        tolerated: why it is no alarm although its first cause is none of a healthy run.
    """

    change: Change
    explanations: tuple[Explanation, ...]
    is_expected: bool = False
    tolerated: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a run at one moment.

    Attributes:
        state: of the run.
        expected: None without a configuration.
        first_step, last_step, steps: seen, and their number.
        last_at: time of the last event, seconds since the epoch.
        median_s, low_s, high_s: recent usual step and its central 90 %, slow single steps left out.
        spread: robust relative standard deviation of steps (1.4826 · MAD ÷ median).
        trend: relative change of the step per 1,000 steps (Theil–Sen).
        tokens_per_second, mfu: of the run; ``mfu`` needs the model.
        parts: measured seconds of a step by part, medians.
        findings: in the order of their cost.
        lost_s: seconds above the expected (without a prediction: the usual) step so far; ``lost_to_come_s`` to the end.
        remaining_steps, end_at: to the end, where the target is known.
        restarts: of the process.
        notes: caveats, a sentence each.
    """

    state: State
    expected: Expected | None = None
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0
    last_at: float | None = None
    median_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    spread: float | None = None
    trend: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    lost_s: float = 0.0
    lost_to_come_s: float | None = None
    remaining_steps: int | None = None
    end_at: float | None = None
    restarts: int = 0
    notes: tuple[str, ...] = ()
