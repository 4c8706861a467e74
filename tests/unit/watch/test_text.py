"""The report: three lines that answer, then findings with evidence and remedy, then numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.watch.health import Change, ChangeKind, State
from predictor.watch.text import answer, render, trust, why
from predictor.watch.words import extent, line, slowdown, when
from tests.unit.watched_examples import AT, CHECKPOINTS, EXPECTED, HEALTHY, SLOW_RANK, SLOWER, WAITING


def test_the_first_three_sentences_are_answer_trust_and_reason() -> None:
    text = render(SLOWER, ["train.log: torchtitan"], 200).splitlines()
    assert text[0].startswith("Health    Slower than it should be, at step 600: 2 s a step, +22 % beside")
    assert text[0].endswith("; 72 s lost so far.")
    assert text[1].startswith("Trust     Predicted 1.6 s (90 % interval 1.3 s – 1.9 s; llama-8b.yml on H100)")
    assert text[1].endswith("The run is slower than the interval.")
    assert text[2].startswith("Why       One slow rank (84% sure): jump from step 401 on")


def test_a_finding_has_its_evidence_what_tells_it_and_what_to_do() -> None:
    text = render(SLOWER, [])
    assert "84%  one slow rank: rank 5 takes 18 % longer than the median rank" in text
    assert "to tell: times of every rank" in text
    assert "to do: drain the node of rank 5" in text
    assert "  1%  not explained" not in text  # too improbable to list
    assert "every 100 steps, steps 100 to 600" in text
    assert " 2  every 100 steps, steps 100 to 600: 3 s more than 1.64 s a step, 18 s lost: checkpoint (97%)" in text


def test_the_same_advice_is_given_once_and_long_lists_are_cut() -> None:
    text = render(replace(SLOWER, findings=(SLOW_RANK,) * 9 + (CHECKPOINTS,) * 8), [])
    assert text.count("to do: drain the node") == 1
    assert text.count("84%  one slow rank") == 6
    assert text.count("checkpoint (97%)") == 6
    assert "and 5 more; --json lists all" in text


def test_the_numbers_are_a_table_and_no_line_is_too_wide() -> None:
    text = render(SLOWER, ["train.log"], 80)
    assert max(map(len, text.splitlines())) <= 80
    rows = {row.split()[0]: row.split() for row in text.splitlines() if row}
    assert rows["expected"][1:3] == ["1.6", "s"]
    assert rows["calibrated"][1:3] == ["1.64", "s"]
    assert rows["measured"][-2:] == ["262,144", "23.4%"]
    assert rows["backward"][1:] == ["1.4", "s", "1.2", "s"]  # recomputation is part of it
    assert rows["ends"][-4:] == ["20,000", "steps", "to", "go"]


def test_a_run_without_configuration_is_judged_by_itself() -> None:
    assert trust(HEALTHY).startswith("Judged by the run's own steps")
    assert why(HEALTHY) == "No deviation needs an explanation."
    assert answer(HEALTHY) == "Healthy, at step 600: 1.64 s a step."


def test_an_unknown_cause_is_not_said_to_be_sure() -> None:
    unknown = replace(SLOW_RANK, explanations=SLOW_RANK.explanations[2:])
    assert why(replace(SLOWER, findings=(unknown,))) == "Not explained: jump from step 401 on, 72 s lost."


def test_a_run_without_a_step_says_that_it_has_none() -> None:
    assert render(WAITING, []).startswith("Health    Waiting for the first step")


@pytest.mark.parametrize(
    ("median_s", "said"), [(1.64, "inside the interval"), (1.0, "faster than the interval"), (1.95, "slower than")]
)
def test_the_interval_is_held_against_the_run(median_s: float, said: str) -> None:
    assert said in trust(replace(SLOWER, median_s=median_s))


def test_slower_is_beside_the_prediction_and_without_one_beside_the_usual_step() -> None:
    assert slowdown(SLOWER) == pytest.approx(0.25)  # not beside the calibrated step, which forgives
    assert slowdown(replace(SLOWER, expected=None, median_s=1.2)) == pytest.approx(0.1)
    assert slowdown(WAITING) is None


def test_a_line_names_state_step_and_the_costliest_unexpected_deviation() -> None:
    said = line(SLOWER, AT)
    assert "slower than it should be, 2 s a step (+22 %)  step 600" in said
    assert said.endswith("one slow rank (jump from step 401 on)")
    assert "checkpoint" not in line(replace(SLOWER, findings=(CHECKPOINTS,)), AT)
    assert "ends" not in line(replace(SLOWER, state=State.ENDED), AT)


def test_when_says_the_shape() -> None:
    assert when(SLOW_RANK.change) == "jump from step 401 on"
    assert when(CHECKPOINTS.change) == "every 100 steps, steps 100 to 600"
    stall = Change(ChangeKind.STALL, 600, None, 1.64, 3600.0, 3600.0)
    assert f"{when(stall)}: {extent(stall)}" == "no step after step 600: silence for 1 h, a usual step takes 1.64 s"
    assert extent(replace(CHECKPOINTS.change, extra_s=-0.2, lost_s=-3.0)) == "200 ms less than 1.64 s a step"


def test_a_log_does_not_command_the_terminal() -> None:
    evil = replace(SLOW_RANK, explanations=(replace(SLOW_RANK.explanations[0], title="\x1b[2J", evidence=("\x07",)),))
    run = replace(SLOWER, findings=(evil,), notes=("\x9b31m",))
    said = render(run, ["\x1b]0;x"]) + line(run, AT)
    assert all(character.isprintable() or character == "\n" for character in said)


def test_what_the_calibration_moved_is_said() -> None:
    assert "moved it by +2.5 % to 1.64 s (1.6 s – 1.68 s)" in trust(replace(SLOWER, expected=EXPECTED))


def test_an_unexplained_deviation_that_is_no_alarm_says_why() -> None:
    unknown = SLOW_RANK.explanations[2]
    rare = replace(CHECKPOINTS, explanations=(unknown,), tolerated="it costs less than 3% of the time")
    assert "18 s lost: not explained, but it costs less than 3% of the time" in render(
        replace(HEALTHY, findings=(rare,)), [], 200
    )


def test_work_that_no_step_is_longer_for_is_not_said_to_shorten_them() -> None:
    free = replace(CHECKPOINTS.change, extra_s=-0.02, lost_s=-0.12)
    assert extent(free) == "steps no longer than the usual 1.64 s"


def test_steps_that_are_taken_again_are_one_deviation() -> None:
    again = Change(ChangeKind.SINGLE, 1001, 1230, 4.0, 960.0, 960.0)
    assert f"{when(again)}: {extent(again)}" == "steps 1,001 to 1,230: 16 min lost"
