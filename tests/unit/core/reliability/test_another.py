"""A new member's quantity covers what members drawn alike come to, and groups count as far as they differ."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest

from predictor.core.reliability.another import another


@pytest.mark.parametrize("sizes", [(3,), (9,), (4, 5), (2, 7)])
def test_nine_of_ten_new_members_lie_in_the_interval(sizes: tuple[int, ...]) -> None:
    random = Random(3)
    inside = 0
    for _ in range(2000):
        values = {str(i): [random.lognormvariate(0.0, 0.7) for _ in range(size)] for i, size in enumerate(sizes)}
        found = another(values, "0")
        inside += abs(log(random.lognormvariate(0.0, 0.7) / found.median)) <= 1.645 * found.spread
    assert 0.87 <= inside / 2000 <= 0.95


def test_groups_that_differ_keep_their_own_median_and_groups_that_do_not_share_one() -> None:
    apart = {"a": [1.0, 1.1, 0.9, 1.0], "b": [50.0, 55.0, 45.0, 50.0]}
    assert another(apart, "a").median == pytest.approx(1.0, rel=0.02)
    assert another(apart, "b").median == pytest.approx(50.0, rel=0.02)
    alike = {"a": [1.0, 4.0, 2.0], "b": [1.1, 3.9, 2.1]}
    assert another(alike, "a").median == another(alike, "b").median
    assert another(apart, "c").median == pytest.approx(7.05, rel=0.02)
    assert another(apart, "c").spread > 3 * another(apart, "a").spread


def test_counting_is_no_difference_between_members() -> None:
    values = {"": [exp(each) for each in (-0.3, 0.0, 0.3)]}
    assert another(values, "", [0.05] * 3).spread < another(values, "").spread
    assert another(values, "", [5.0] * 3).spread > 0.0  # the mean is not known better for that


def test_one_value_says_nothing_of_another() -> None:
    with pytest.raises(ValueError, match="two values"):
        another({"a": [1.0]}, "a")
