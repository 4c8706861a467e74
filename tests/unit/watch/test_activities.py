"""Checkpoints and evaluations that a log states are named as such, and those that take longer than they did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor.watch.events import CHECKPOINT, EVALUATION, Activity, Event, Start, Step
from predictor.watch.health import Finding
from tests.unit.watch.fake_runs import times, watch


def checkpoints(seconds: Callable[[int], float]) -> list[Finding]:
    """Return the findings about checkpoints of a run that saves every tenth step."""
    events: list[Event] = [Start(world_size=1)]
    for number, step_s in enumerate(times(200), 1):
        events.append(Step(number, step_s, rank=0))
        if number % 10 == 0:
            events.append(Activity(CHECKPOINT, number, seconds(number), rank=0))
            events.append(Activity(CHECKPOINT, number, seconds(number), rank=1))
    found = watch(events).findings
    return [finding for finding in found if finding.explanations[0].cause == "checkpointing"]


def test_all_of_them_are_one_expected_finding_of_their_whole_cost() -> None:
    (finding,) = checkpoints(lambda _: 0.3)
    assert finding.is_expected
    assert (finding.change.period, finding.change.occurrences) == (10, 20)
    assert abs(finding.change.lost_s - 20 * 0.3) < 0.2
    assert 0.09 < finding.change.level_s < 0.11
    assert "Checkpoint 20 times" in finding.explanations[0].evidence[0]


def test_longer_ones_are_an_alarm_from_the_first_of_them_on() -> None:
    found = checkpoints(lambda number: 0.9 if number >= 120 else 0.3 + 0.01 * (number % 3))
    (longer,) = [finding for finding in found if not finding.is_expected]
    assert (longer.change.first_step, longer.change.last_step, longer.change.period) == (120, None, 10)
    assert 0.55 < longer.change.extra_s < 0.62
    assert "longer than the" in longer.explanations[0].evidence[0]


def test_a_single_long_one_is_none() -> None:
    assert all(finding.is_expected for finding in checkpoints(lambda number: 0.9 if number == 120 else 0.3))


def test_longer_ones_that_cost_nothing_to_speak_of_are_none() -> None:
    assert all(finding.is_expected for finding in checkpoints(lambda number: 0.012 if number >= 120 else 0.004))


def test_longer_ones_end_with_the_first_usual_one() -> None:
    found = checkpoints(lambda number: 0.9 if 120 <= number < 160 else 0.3)
    (longer,) = [finding for finding in found if not finding.is_expected]
    assert (longer.change.first_step, longer.change.last_step) == (120, 150)


def test_time_that_a_further_line_states_counts_once() -> None:
    events: list[Event] = []
    for number, step_s in enumerate(times(200), 1):
        events.append(Step(number, step_s))
        if number % 50 == 0:
            stated = Activity(CHECKPOINT, number, 2.0)
            events += [Activity(CHECKPOINT, number), stated, stated]
    (finding,) = watch(events).findings
    assert finding.explanations[0].evidence == ("Checkpoint 4 times, 2 s each",)
    assert finding.explanations[0].belief > 0.95
    assert finding.change.lost_s == pytest.approx(8.0, abs=0.1)


def test_time_inside_steps_is_told_as_the_log_states_it() -> None:
    events: list[Event] = []
    for number, step_s in enumerate(times(200), 1):
        events.append(Step(number, step_s))
        if number in (60, 150):
            events.append(Activity(EVALUATION, number, 2.47, in_step=True))
    (finding,) = watch(events).findings
    assert finding.explanations[0].evidence == ("Evaluation 2 times, 2.47 s each",)
    assert abs(finding.change.lost_s) < 0.1
