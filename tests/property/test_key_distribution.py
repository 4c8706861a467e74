"""Distinct rows and hit shares of key distributions beside sums over all keys."""

from __future__ import annotations

import random
from collections import OrderedDict
from math import exp, log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.recommender.workload.cache import lru_hit_share
from predictor.recommender.workload.keys import KeyDistribution

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


@given(st.sampled_from([0.0, 0.5, 1.2, 5.0, 40.0, 120.0]), st.floats(0.3, 3_000.0), st.floats(0.0, 1.0))
def test_no_cache_beats_one_of_the_most_frequent_keys(exponent: float, count: float, part: float) -> None:
    keys, cached = KeyDistribution(exponent), part * count
    most = keys.hit_share(cached, count)
    assert 0.0 <= most <= 1.0
    assert 0.0 <= lru_hit_share(keys, cached, count) <= most


@pytest.mark.parametrize("exponent", [0.5, 1.2, 5.0])
def test_a_part_of_a_row_counts_in_part(exponent: float) -> None:
    keys = KeyDistribution(exponent)
    halves = [keys.hit_share(cached, 10.0) for cached in (2.0, 2.5, 3.0)]
    assert halves[1] == pytest.approx((halves[0] + halves[2]) / 2.0)
    assert 0.0 < keys.hit_share(0.2, 0.5) < 1.0
    assert lru_hit_share(keys, 9.99, 10.0) > 0.9


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_an_lru_cache_answers_what_a_simulation_of_it_does(exponent: float) -> None:
    draw, kept, hits = random.Random(1), OrderedDict[int, None](), 0
    keys = draw.choices(range(200), shares(exponent, 200), k=40_000)
    for key in keys:
        hits += key in kept
        kept[key] = None
        kept.move_to_end(key)
        if len(kept) > 20:
            kept.popitem(last=False)
    assert lru_hit_share(KeyDistribution(exponent), 20.0, 200.0) == pytest.approx(hits / len(keys), abs=0.01)
