"""Two runs step by step: what differs, and from which step on."""

from __future__ import annotations

from random import Random

import pytest

from predictor.core.base.json_text import as_json
from predictor.watch.comparison import Compared, change_point, stretches
from predictor.watch.comparison_report import comparison_json, render
from predictor.watch.health import Health
from predictor.watch.series import StepSeries
from tests.unit.watched_examples import AT, HEALTHY, SLOWER, WAITING, series

NAMES = ("new", "old")


def compared(this: StepSeries, other: StepSeries, health: Health = HEALTHY) -> Compared:
    return Compared(SLOWER, health, NAMES, stretches(this, other))


def test_the_step_from_which_on_one_run_is_slower_is_found() -> None:
    before, after = stretches(series(slower_from=401), series(slower_from=10_000, seed=1))
    assert abs(after.first_step - 401) <= 2
    assert abs(before.ratio) < 0.005
    assert after.ratio == pytest.approx(2.0 / 1.64 - 1.0, abs=0.01)


def test_runs_alike_have_one_stretch_in_99_of_100_draws() -> None:
    counts = [
        len(stretches(series(slower_from=10_000, seed=seed), series(slower_from=10_000, seed=seed + 1)))
        for seed in range(0, 200, 2)
    ]
    assert counts.count(1) >= 99


def test_a_shift_of_less_than_a_hundredth_is_no_news() -> None:
    random = Random(0)
    assert change_point([(1.0 if i < 300 else 1.008) + random.gauss(0, 1e-4) for i in range(600)]) is None
    assert change_point([(1.0 if i < 300 else 1.02) + random.gauss(0, 1e-4) for i in range(600)]) == 300


def test_equal_times_of_a_coarse_clock_change_nothing() -> None:
    assert change_point([1.0] * 600) is None
    assert change_point([1.0] * 3) is None


def test_the_report_begins_with_how_much_and_says_since_when() -> None:
    text = render(compared(series(slower_from=401), series(slower_from=10_000, seed=1)))
    first = text.splitlines()[0]
    assert first.startswith("Answer    +7.")
    assert "slower" in first
    assert "from step 40" in text
    assert "one slow rank" in text
    assert "old: no deviation" in text


def test_runs_without_shared_steps_are_compared_by_their_usual_steps() -> None:
    text = render(compared(series(), StepSeries()))
    assert text.startswith("Answer    +22 % a step beside old")
    assert "share no step numbers" in text


def test_a_run_without_steps_is_not_comparable() -> None:
    assert render(compared(series(), StepSeries(), WAITING)).startswith("Answer    Not comparable: old")


def test_the_document_has_both_runs_and_the_stretches() -> None:
    content = comparison_json(compared(series(), series(slower_from=10_000)), (["a"], ["b"]), AT)
    as_json(content)
    assert content["format"] == "estimate-train-time/watch-comparison/1"
    assert content["stretches"][0]["first_step"] == 1
    assert content["this"]["state"] == "slower"
    assert content["other"]["sources"] == ["b"]
