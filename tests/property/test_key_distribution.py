"""Distinct rows and hit shares of key distributions beside sums over all keys."""

from __future__ import annotations

from math import exp, log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.workloads.recommender.keys import KeyDistribution

exponents = st.sampled_from([0.0, 0.5, 1.0, 1.2, 3.0, 5.0])
rows = st.integers(1, 4_000)


def shares(exponent: float, count: int) -> list[float]:
    masses = [(key + 1) ** -exponent for key in range(count)]
    return [mass / sum(masses) for mass in masses]


@given(exponents, rows, st.integers(1, 200_000))
def test_distinct_rows_equal_the_sum_over_keys(exponent: float, count: int, lookups: int) -> None:
    exact = sum(1.0 if share >= 1 else 1.0 - exp(lookups * log1p(-share)) for share in shares(exponent, count))
    assert KeyDistribution(exponent).distinct(lookups, count) == pytest.approx(exact, rel=0.01)


@given(exponents, rows, st.floats(0.0, 1.0))
def test_hit_share_equals_the_mass_of_the_most_frequent_keys(exponent: float, count: int, part: float) -> None:
    cached = int(part * count)
    exact = sum(shares(exponent, count)[:cached])
    assert KeyDistribution(exponent).hit_share(cached, count) == pytest.approx(exact, rel=0.01, abs=1e-12)


@given(exponents, rows, st.integers(1, 100_000))
def test_distinct_rows_are_at_most_rows_and_lookups(exponent: float, count: int, lookups: int) -> None:
    distinct = KeyDistribution(exponent).distinct(lookups, count)
    assert 0 < distinct <= min(count, lookups) * (1 + 1e-9)
    assert distinct <= KeyDistribution(exponent).distinct(lookups + 1000, count) * (1 + 1e-9)


def test_hundred_million_keys_are_summed_quickly() -> None:
    assert KeyDistribution(1.05).distinct(65536, 100_000_000) < 65536
