"""Published steps by group: error, coverage and width of the intervals, with strict lists of what misses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.accuracy.groups import Figures, Judged, Row, figures, judge, read_before, table
from tests.accuracy.missed_groups import COVERAGE, ERROR, WIDTH
from tests.accuracy.tolerances import FEWEST_ROWS, GROUP_BARS, LEAST_INSIDE, MOST_INSIDE, WIDEST

pytestmark = pytest.mark.usefixtures("truth")


@pytest.fixture(scope="module")
def judged(truth: Path) -> Judged:
    return judge(truth)


@pytest.fixture(scope="module")
def by_group(judged: Judged) -> dict[str, Figures]:
    return {name: figures(rows) for name, rows in judged.groups.items()}


def test_errors_are_within_their_bars_but_for_the_listed(by_group: dict[str, Figures]) -> None:
    missed = {
        name: by_group[name].mean_absolute_percent
        for name, bar in GROUP_BARS.items()
        if name in by_group and by_group[name].mean_absolute_percent > bar
    }
    assert set(missed) == set(ERROR), missed


def test_intervals_cover_what_they_say_but_for_the_listed(by_group: dict[str, Figures]) -> None:
    large = {name: each for name, each in by_group.items() if each.rows >= FEWEST_ROWS}
    assert large
    missed = {
        name: each.inside_percent
        for name, each in large.items()
        if not LEAST_INSIDE <= each.inside_percent <= MOST_INSIDE
    }
    assert set(missed) == set(COVERAGE), missed


def _is_dense_in_16_bits_on_measured(rows: Sequence[Row]) -> bool:
    """Return whether all runs of a group are dense, in 16 bits, and on systems with regressors of their own."""
    return all(
        row.compared.system.files.names("operator")
        and row.compared.prediction.run.gemm_recipe is None
        and row.compared.prediction.run.model.experts is None
        for row in rows
    )


def test_intervals_on_measured_gpus_are_narrow_but_for_the_listed(judged: Judged, by_group: dict[str, Figures]) -> None:
    missed = {
        name: by_group[name].high_over_low
        for name, rows in judged.groups.items()
        if name in GROUP_BARS and _is_dense_in_16_bits_on_measured(rows) and by_group[name].high_over_low > WIDEST
    }
    assert set(missed) == set(WIDTH), missed


def test_most_rows_are_compared_and_the_others_counted(judged: Judged) -> None:
    left_out = sum(judged.unexpressed.values()) + sum(judged.refused.values())
    assert left_out < judged.num_rows / 3
    lines = list(table(judged))
    assert len(lines) == 2 + len(judged.groups) + len(judged.unexpressed) + len(judged.refused)


def test_the_figures_before_are_of_groups_that_are_still_judged(by_group: dict[str, Figures]) -> None:
    _, before = read_before()
    assert set(before) <= set(by_group)
