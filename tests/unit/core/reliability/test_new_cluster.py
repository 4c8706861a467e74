"""A new member's quantity covers what members drawn alike come to, and groups count as far as they differ."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest

from predictor.core.reliability.new_cluster import KNOWN, Spread, of_new_cluster


@pytest.mark.parametrize("sizes", [(3,), (9,), (4, 5), (2, 7)])
def test_nine_of_ten_new_members_lie_in_the_interval(sizes: tuple[int, ...]) -> None:
    random = Random(3)
    inside = 0
    for _ in range(2000):
        values = {str(i): [random.lognormvariate(0.0, 0.7) for _ in range(size)] for i, size in enumerate(sizes)}
        found = of_new_cluster(values, "0")
        inside += abs(log(random.lognormvariate(0.0, 0.7) / found.median)) <= log(found.spread.factor(0.95))
    assert 0.87 <= inside / 2000 <= 0.95


def test_groups_that_differ_keep_their_own_median_and_groups_that_do_not_share_one() -> None:
    apart = {"a": [1.0, 1.1, 0.9, 1.0], "b": [50.0, 55.0, 45.0, 50.0]}
    assert of_new_cluster(apart, "a").median == pytest.approx(1.0, rel=0.02)
    assert of_new_cluster(apart, "b").median == pytest.approx(50.0, rel=0.02)
    alike = {"a": [1.0, 4.0, 2.0], "b": [1.1, 3.9, 2.1]}
    assert of_new_cluster(alike, "a").median == of_new_cluster(alike, "b").median
    assert of_new_cluster(apart, "c").median == pytest.approx(7.05, rel=0.02)
    assert of_new_cluster(apart, "c").spread.deviation > 3 * of_new_cluster(apart, "a").spread.deviation


def test_counting_is_no_difference_between_members() -> None:
    values = {"": [exp(each) for each in (-0.3, 0.0, 0.3)]}
    assert of_new_cluster(values, "", [0.05] * 3).spread.deviation < of_new_cluster(values, "").spread.deviation
    assert of_new_cluster(values, "", [5.0] * 3).spread.deviation > 0.0  # the mean is not known better for that


def test_a_spread_is_cut_off_and_keeps_the_median() -> None:
    found = of_new_cluster({"": [1.0, 2.0, 4.0, 8.0]}, "").spread
    assert found.reach == pytest.approx(log(8.0**0.5 * 3.0))
    assert found.factor(0.5) == pytest.approx(1.0)
    assert found.factor(0.05) * found.factor(0.95) == pytest.approx(1.0)
    assert found.factor(0.0) == pytest.approx(exp(-found.reach))
    assert found.factor(1.0) == pytest.approx(exp(found.reach))
    assert Spread(1.0, 50.0).factor(0.95) == pytest.approx(exp(1.645), rel=1e-3)
    assert KNOWN.factor(0.99) == 1.0


def test_one_value_says_nothing_of_of_new_cluster() -> None:
    with pytest.raises(ValueError, match="two values"):
        of_new_cluster({"a": [1.0]}, "a")
