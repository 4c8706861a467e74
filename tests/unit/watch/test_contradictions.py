"""A log of another run than the configuration's is named as one, in a sentence."""

from __future__ import annotations

import pytest

from predictor.watch.contradictions import Contradictions
from predictor.watch.events import Event, Start, Step
from tests.unit.watched_examples import EXPECTED


def said(*events: Event) -> str:
    contradictions = Contradictions(EXPECTED)
    for event in events:
        contradictions.take(event)
    return " ".join(contradictions.sentences)


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (Step(1, 1.0, tokens=262_144), "262,144 tokens a step; the configuration has 524,288"),
        (Step(1, 1.0, samples=32), "32 samples a step; the configuration has 64"),
        (Step(1, 1.0, sequence_length=4096), "sequences of 4,096 tokens; the configuration has 8,192"),
        (Start(world_size=8), "8 ranks; the configuration is of 64 GPUs"),
    ],
)
def test_numbers_that_are_not_the_configuration_s(event: Event, sentence: str) -> None:
    assert sentence in said(event)


def test_a_log_that_agrees_contradicts_nothing() -> None:
    fitting = Step(1, 1.0, tokens=524_000, samples=64, sequence_length=8192)
    assert said(Start(world_size=64, target_step=100), fitting, Step(2, 1.0), Step(3, 1.0)) == ""


def test_the_newest_number_counts() -> None:
    assert said(Step(1, 1.0, tokens=1024), Step(2, 1.0, tokens=524_288)) == ""


def test_steps_that_go_back_are_a_restart_s_or_another_run_s() -> None:
    assert "Step 5 follows step 900 without a restart" in said(Step(900, 1.0), Step(5, 1.0))
    assert said(Step(900, 1.0), Start(resumed_step=4), Step(5, 1.0)) == ""


def test_a_run_goes_not_beyond_its_end() -> None:
    assert "step 101 of a run that ends at step 100" in said(Start(target_step=100), Step(101, 1.0))
