"""Step times in buckets: whole, bounded, matched by step number."""

from __future__ import annotations

import pytest

from predictor.watch.events import Step
from predictor.watch.series import StepSeries, matched
from tests.unit.watched_examples import series


def test_every_step_is_in_one_bucket_however_few_there_may_be() -> None:
    whole, narrow = series(), series(most=50)
    assert len(narrow.buckets()) <= 50
    for kept in (whole, narrow):
        buckets = kept.buckets().values()
        assert sum(bucket.steps for bucket in buckets) == 600
        assert sum(bucket.total_s for bucket in buckets) == pytest.approx(
            sum(bucket.total_s for bucket in whole.buckets().values())
        )
    assert max(bucket.high_s for bucket in narrow.buckets().values()) > 4.9
    assert len(narrow.at_most(10)) <= 10


def test_a_step_without_a_time_has_that_between_two_events() -> None:
    kept = StepSeries()
    for number, at in ((10, 100.0), (20, 120.0), (30, 150.0)):
        kept.take(Step(number, at=at, steps=10))
    assert [bucket.mean_s for bucket in kept.buckets().values()] == [2.0, 3.0]


def test_one_rank_stands_for_all_until_the_run_itself_is_timed() -> None:
    kept = StepSeries()
    for rank in (3, 0, 1):
        kept.take(Step(1, 1.0 + rank, rank=rank))
    assert [bucket.mean_s for bucket in kept.buckets().values()] == [4.0]
    kept.take(Step(2, 9.0))
    kept.take(Step(2, 1.0, rank=3))
    assert [bucket.mean_s for bucket in kept.buckets().values()] == [4.0, 9.0]


def test_times_that_are_no_numbers_are_left_out() -> None:
    kept = StepSeries()
    for value in (float("nan"), float("inf"), 1.0):
        kept.take(Step(1, value))
    assert [bucket.steps for bucket in kept.buckets().values()] == [1]


def test_two_runs_match_by_step_number_at_any_width() -> None:
    pairs = matched(series(), series(steps=300, most=64), 512)
    assert pairs[-1][1].last_step == 300
    assert all(one.first_step == other.first_step for one, other in pairs)
    assert matched(series(steps=4), StepSeries(), 512) == []
