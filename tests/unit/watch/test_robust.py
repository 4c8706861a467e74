"""Robust statistics keep the rates that they state."""

from __future__ import annotations

import random
from math import log, log1p

import pytest

from predictor.watch.robust import (
    cusum_limit,
    long_run_factor,
    mann_kendall,
    midmean,
    rounding,
    run_length,
    spread,
    theil_sen,
)
from predictor.watch.slow_steps import HEALTHY_RATE, SLOW_LIMIT, SLOW_SCORE, USUAL_SCORE, period_of


@pytest.mark.parametrize("reference", [0.5, 1.0])
def test_cusum_of_normal_values_alarms_as_rarely_as_its_limit_says(reference: float) -> None:
    draw, limit = random.Random(1), cusum_limit(reference, 500)
    alarms, total, steps = 0, 0.0, 200_000
    for _ in range(steps):
        total = max(0.0, total + draw.gauss(0, 1) - reference)
        if total > limit:
            alarms, total = alarms + 1, 0.0
    assert steps / alarms == pytest.approx(500, rel=0.15)
    assert run_length(reference, limit) == pytest.approx(500, rel=1e-6)


def test_cusum_of_slow_steps_alarms_once_in_1e5_steps_of_a_healthy_run() -> None:
    draw, total, alarms, steps = random.Random(2), 0.0, 0, 1_000_000
    for _ in range(steps):
        total = max(0.0, total + (SLOW_SCORE if draw.random() < HEALTHY_RATE else USUAL_SCORE))
        if total > SLOW_LIMIT:
            alarms, total = alarms + 1, 0.0
    assert alarms <= 15
    assert pytest.approx(log(20)) == SLOW_SCORE
    assert pytest.approx(log1p(-0.2) - log1p(-0.01)) == USUAL_SCORE


def test_long_run_factor_of_correlated_values() -> None:
    draw, value, values = random.Random(3), 0.0, []
    for _ in range(20_000):
        value = 0.4 * value + draw.gauss(0, 1)
        values.append(value)
    # Of blocks of 8 it lies below the limit for long blocks, √(1.4 ÷ 0.6).
    assert 1.3 < long_run_factor(values) < (1.4 / 0.6) ** 0.5
    assert long_run_factor([draw.gauss(0, 1) for _ in range(20_000)]) == pytest.approx(1, abs=0.05)


def test_slow_steps_at_random_have_no_period() -> None:
    draw, rate, found, questions = random.Random(4), 0.02, 0, 0
    for _ in range(200):
        numbers = [number for number in range(1000) if draw.random() < rate]
        for last in range(3, len(numbers) + 1):
            questions += 1
            found += period_of(numbers[:last][-32:], rate) is not None
    assert found <= 3  # 2 · 10⁵ steps
    assert questions > 1000


@pytest.mark.parametrize("period", [2, 7, 50, 250])
def test_period_is_found_among_other_slow_steps(period: int) -> None:
    numbers = sorted({*range(1000, 1000 + 5 * period, period), 1003, 1000 + 2 * period + 1})
    assert period_of(numbers, 0.005) == period


def test_estimates_ignore_a_tenth_of_gross_errors() -> None:
    draw = random.Random(5)
    values = [draw.gauss(10, 1) if number % 10 else 1e6 for number in range(500)]
    assert midmean(values) == pytest.approx(10, abs=0.3)
    assert spread(values) == pytest.approx(1, abs=0.25)
    points = list(enumerate(value + 0.05 * number for number, value in enumerate(values[:200])))
    assert theil_sen(points) == pytest.approx(0.05, abs=0.01)
    assert mann_kendall([value for _, value in points]) > 5


def test_rounding_is_seen() -> None:
    assert rounding([0.030, 0.031, 0.034]) == pytest.approx(0.001)
    assert rounding([0.0301234, 0.0312345]) == 0.0
    assert rounding([0.03, 0.03]) == 0.0
