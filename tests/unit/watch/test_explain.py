"""Explanations name the cause that the facts of the log speak for, and nothing without such facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

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
    DeviceSample,
    Event,
    Start,
    Step,
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


def test_beliefs_are_as_often_right_as_they_say() -> None:
    beliefs, hits = [], []
    for seed, (cause, (extra, counters)) in enumerate(FAULTS.items()):
        for size in (0.6, 1.0, 2.0):

            def scaled(n: int, r: int, size: float = size, extra: Fault = extra) -> Mapping[str, float]:
                return {part: size * seconds for part, seconds in extra(n, r).items()}

            events = list(ranks(ONSET + 60, scaled, 2, counters, seed))
            findings = [f for f in watch(events).findings if f.change.kind is not ChangeKind.SINGLE]
            first = findings[0].explanations[0]
            beliefs.append(first.belief)
            hits.append(first.cause == cause)
    assert sum(hits) >= 0.85 * len(hits)
    assert sum(beliefs) / len(beliefs) <= sum(hits) / len(hits) + 0.05


def test_ranks_of_one_host_are_a_slow_node() -> None:
    events = list(ranks(ONSET + 60, lambda n, r: {FORWARD: 0.05} if _from(n) and r >= 2 else {}, 4))
    events[0] = Start(world_size=4, hosts=("node1", "node2"))
    (finding,) = [finding for finding in watch(events).findings if not finding.is_expected]
    assert finding.explanations[0].cause == "slow_node"
    assert any("node2" in sentence for sentence in finding.explanations[0].evidence)


@pytest.mark.parametrize(("hot", "said"), [({3}, "GPU 3 alone of 8 states"), ({1, 3}, "2 of 8 GPUs state")])
def test_the_gpu_that_is_limited_is_named(hot: set[int], said: str) -> None:
    seconds = times(100) + [1.2 * value for value in times(60, seed=1)]
    events: list[Event] = []
    for number, event in enumerate(steps(seconds)):
        for gpu in range(8) if number % 4 == 0 else ():
            reasons = {"hw_thermal_slowdown"} if gpu in hot and number > 100 else set[str]()
            events.append(DeviceSample(str(gpu), throttle_reasons=frozenset(reasons)))
        events.append(event)
    (finding,) = [finding for finding in watch(events).findings if not finding.is_expected]
    assert finding.explanations[0].cause == "throttling"
    assert said in finding.explanations[0].evidence[0]
    assert ("slow_rank" in {cause.cause for cause in finding.explanations}) == (len(hot) == 1)


def test_jump_of_times_alone_is_not_explained() -> None:
    seconds = times(100) + [1.2 * value for value in times(60, seed=1)]
    (finding,) = [finding for finding in watch(steps(seconds)).findings if not finding.is_expected]
    assert finding.change.kind is ChangeKind.JUMP
    assert finding.explanations[0].cause == NOT_EXPLAINED


def test_what_the_log_does_not_state_is_not_said_to_have_stayed() -> None:
    seconds = times(100) + [1.2 * value for value in times(60, seed=1)]
    events = [replace(event, samples=256) if isinstance(event, Step) else event for event in steps(seconds)]
    (finding,) = [finding for finding in watch(events).findings if not finding.is_expected]
    assert finding.explanations[0].evidence == ("Samples of a step stayed",)


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
