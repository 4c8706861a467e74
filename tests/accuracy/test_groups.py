"""Published steps by group: error, coverage and width of the intervals, with strict lists of what misses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accuracy.groups import Judged, judge, missed, read_before, table
from tests.accuracy.missed_groups import COVERAGE, ERROR, WIDTH

pytestmark = pytest.mark.usefixtures("truth")


@pytest.fixture(scope="module")
def judged(truth: Path) -> Judged:
    return judge(truth)


@pytest.mark.parametrize(("kind", "listed"), [("error", ERROR), ("coverage", COVERAGE), ("width", WIDTH)])
def test_groups_are_as_good_as_asked_but_for_the_listed(judged: Judged, kind: str, listed: dict[str, str]) -> None:
    figure_of = getattr(missed(judged), kind)
    assert set(figure_of) == set(listed), figure_of


def test_most_rows_are_compared_and_the_others_counted(judged: Judged) -> None:
    left_out = sum(judged.unexpressed.values()) + sum(judged.refused.values())
    assert left_out < judged.num_rows / 3
    lines = list(table(judged))
    assert len(lines) == 2 + len(judged.groups) + len(judged.unexpressed) + len(judged.refused)


def test_the_figures_before_are_of_groups_that_are_still_judged(judged: Judged) -> None:
    _, before = read_before()
    assert set(before) <= set(judged.groups)
