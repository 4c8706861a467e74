"""Explanations name the cause that the facts of the log speak for, and nothing without such facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from predictor.watch.events import (
    ALLOCATOR_RETRIES,
    BACKWARD,
    CHECKPOINT,
    COLLECTED_SECONDS,
    COMMUNICATION,
    CPU_SECONDS,
    DATA,
    FORWARD,
    INVOLUNTARY_SWITCHES,
    RUN_QUEUE_SECONDS,
    THROTTLED_SECONDS,
)
from predictor.watch.explain import NOT_EXPLAINED, causes, explain
from predictor.watch.health import ChangeKind
from tests.unit.watch.fake_runs import ranks, steps, times, watch

ONSET = 100
Fault = Callable[[int, int], Mapping[str, float]]


def _from(number: int) -> bool:
    return number >= ONSET


def _nothing(number: int, rank: int) -> Mapping[str, float]:
    return {}


FAULTS: dict[str, tuple[Fault, Fault | None]] = {
    "slow_rank": (lambda n, r: {FORWARD: 0.05} if _from(n) and r == 1 else {}, None),
    "network": (lambda n, r: {COMMUNICATION: 0.05} if _from(n) else {}, None),
    "data_loading": (lambda n, r: {DATA: 0.05} if _from(n) else {}, None),
    "contention": (
        lambda n, r: {FORWARD: 0.02, BACKWARD: 0.04} if _from(n) else {},
        lambda n, r: {CPU_SECONDS: 0.1, INVOLUNTARY_SWITCHES: 60 if _from(n) else 1, THROTTLED_SECONDS: 0.0},
    ),
    "contention of long time slices": (
        lambda n, r: {FORWARD: 0.02, BACKWARD: 0.04} if _from(n) else {},
        lambda n, r: {INVOLUNTARY_SWITCHES: 5 if _from(n) else 20, RUN_QUEUE_SECONDS: 0.055 if _from(n) else 0.002},
    ),
    "cgroup_throttling": (
        lambda n, r: {FORWARD: 0.02, BACKWARD: 0.04} if _from(n) else {},
        lambda n, r: {CPU_SECONDS: 0.1, INVOLUNTARY_SWITCHES: 1, THROTTLED_SECONDS: 0.05 if _from(n) else 0.0},
    ),
    "garbage_collection": (
        lambda n, r: {BACKWARD: 0.2} if _from(n) and n % 7 == 0 else {},
        lambda n, r: {COLLECTED_SECONDS: 0.2 if _from(n) and n % 7 == 0 else 0.0},
    ),
    "memory_full": (
        lambda n, r: {BACKWARD: 0.1} if _from(n) else {},
        lambda n, r: {ALLOCATOR_RETRIES: 2 if _from(n) else 0},
    ),
    "checkpointing": (lambda n, r: {CHECKPOINT: 0.5} if n % 25 == 0 else {CHECKPOINT: 0.0}, None),
}


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("cause", FAULTS)
def test_fault_of_a_run_with_parts_by_rank_is_named_first(cause: str, num_ranks: int) -> None:
    extra, counters = FAULTS[cause]
    events = list(ranks(ONSET + 60, lambda n, r: dict(extra(n, r)), num_ranks, counters))
    findings = [finding for finding in watch(events).findings if finding.change.kind is not ChangeKind.SINGLE]
    assert findings
    first = findings[0].explanations[0]
    assert first.cause == cause.partition(" of ")[0], list(findings[0].explanations)
    assert first.belief > 0.4
    assert first.evidence
    assert sum(item.belief for item in findings[0].explanations) == pytest.approx(1, abs=0.15)


def test_jump_of_times_alone_is_not_explained() -> None:
    seconds = times(100) + [1.2 * value for value in times(60, seed=1)]
    (finding,) = [finding for finding in watch(steps(seconds)).findings if not finding.is_expected]
    assert finding.change.kind is ChangeKind.JUMP
    assert finding.explanations[0].cause == NOT_EXPLAINED


def test_no_answers_leave_everything_unexplained() -> None:
    (explanation,) = explain(())
    assert explanation.cause == NOT_EXPLAINED
    assert explanation.belief == pytest.approx(1)


def test_probabilities_are_of_known_causes() -> None:
    known = causes()
    for question in known.questions.values():
        for answer in question.answers.values():
            assert answer.given.keys() <= known.causes.keys()
            assert all(0 < value < 1 for value in answer.given.values())
