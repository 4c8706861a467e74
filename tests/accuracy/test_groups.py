"""Published steps by group: error, coverage and width of the intervals, none worse than asked but for the listed."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path

import pytest

from predictor.core.costs.cost import Cost, Source
from tests.accuracy.groups import Judged, Row, judge, missed, read_before
from tests.accuracy.layouts import Timed, jobs, layout_tables, ranking
from tests.accuracy.left_out_sources import averaged, coverage, interval_score, source_table
from tests.accuracy.missed_groups import KNOWN
from tests.accuracy.summaries import KINDS, group_tables, left_out_lines, tables
from tests.accuracy.tables import Table


@pytest.fixture(scope="module")
def judged(truth: Path) -> Judged:
    return judge(truth)


@pytest.mark.parametrize("kind", KNOWN)
def test_no_group_is_worse_than_asked_but_for_the_listed(judged: Judged, kind: str) -> None:
    known = KNOWN[kind]
    for name, figure in getattr(missed(judged), kind).items():
        assert name in known, f"{name} misses with {figure:.4g}"
        listed = known[name].at
        assert figure >= listed if kind == "coverage" else figure <= listed, f"{name}: {figure:.4g}, known at {listed}"


def test_most_rows_are_compared_and_the_others_counted(judged: Judged) -> None:
    left_out = sum(judged.unexpressed.values()) + sum(judged.refused.values())
    assert left_out < judged.num_rows / 3
    assert len(list(left_out_lines(judged))) == 1 + len(judged.unexpressed) + len(judged.refused)


def test_the_figures_before_are_of_groups_that_are_still_judged(judged: Judged) -> None:
    _, before = read_before()
    assert set(before) <= set(judged.groups)


def test_ordinary_runs_and_benchmarks_are_apart_and_every_row_counts_once(judged: Judged) -> None:
    by_kind = {table.name: table for table in group_tables(judged)}
    assert sum(len(table.rows) - 1 for table in by_kind.values()) == len(judged.groups)
    for name, ordinary, _ in KINDS:
        total = by_kind[name].rows[-1]
        assert int(total[1]) == sum(row.compared.step.ordinary is ordinary for row in judged.rows)


def test_a_source_counts_once_and_is_predicted_without_its_own_evidence(judged: Judged) -> None:
    asked: list[str] = []
    published = judged.rows[0].compared.prediction.step

    def without(source: str) -> Callable[[Row], Cost]:
        asked.append(source)
        return lambda row: published

    covered = coverage(judged.rows, without)
    assert asked == sorted({row.compared.step.source for row in judged.rows}) == list(covered)
    first, second, *_ = coverage(judged.rows).values()
    both = averaged([first, second])
    assert both.inside == pytest.approx((first.inside + second.inside) / 2)
    assert both.rows == first.rows + second.rows
    assert source_table(covered, left_out=True).rows[-1][0] == "mean over all sources"


def test_an_interval_is_scored_by_its_width_and_by_what_lies_outside() -> None:
    cost = Cost(1.5, 1.0, 2.0, Source.MEASURED)
    inside, above, below = (interval_score(cost, measured) for measured in (1.2, 2.2, 0.9))
    assert inside == pytest.approx(log(2.0))
    assert above == pytest.approx(log(2.0) + 20.0 * log(1.1))
    assert below == pytest.approx(log(2.0) - 20.0 * log(0.9))


def test_layouts_of_a_job_share_the_batch_unless_it_is_free(judged: Judged) -> None:
    fixed, free = jobs(judged.rows), jobs(judged.rows, free_batch=True)
    assert fixed
    assert all(len(layouts) >= 3 for listed in fixed.values() for layouts in listed)
    count = [sum(len(layouts) for listed in each.values() for layouts in listed) for each in (fixed, free)]
    assert count[0] < count[1]
    assert [table.name for table in layout_tables(judged.rows)] == ["layouts", "samples"]


def test_every_table_is_marked_in_markdown_as_wide_as_its_head(judged: Judged) -> None:
    listed = list(tables(judged))
    assert len({table.name for table in listed}) == len(listed)
    for table in listed:
        lines = list(table.markdown())
        assert lines[0] == f"<!-- table: {table.name} -->"
        assert {line.count(" |") for line in (lines[1], *lines[3:-1])} == {len(table.head)}


def test_every_table_has_a_place_in_the_document(judged: Judged) -> None:
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for table in tables(judged):
        changed = Table(table.name, "", ("made up", "for a test"), [["a", "1"]])
        assert "| made up | for a test |" in changed.placed_in(text), table.name
        assert "made up" not in table.placed_in(changed.placed_in(text))


@pytest.mark.parametrize(
    ("predicted", "measured", "tau", "is_found", "regret", "rank"),
    [
        ((1.0, 2.0, 3.0), (10.0, 20.0, 30.0), 1.0, True, 0.0, 1),
        ((3.0, 2.0, 1.0), (10.0, 20.0, 30.0), -1.0, False, 2.0, 3),
        ((1.0, 2.0, 3.0), (11.0, 10.0, 30.0), 1 / 3, False, 0.1, 2),
        ((1.0, 1.0, 1.0), (10.0, 20.0, 30.0), 0.0, False, 2.0, 3),
    ],
)
def test_ranking(
    predicted: tuple[float, ...], measured: tuple[float, ...], tau: float, is_found: bool, regret: float, rank: int
) -> None:
    found = ranking([Timed(*each) for each in zip(predicted, measured, strict=True)])
    assert found.tau == pytest.approx(tau)
    assert found.is_found is is_found
    assert found.regret == pytest.approx(regret)
    assert found.rank == rank


def test_a_table_is_aligned_as_text() -> None:
    table = Table("made", "a title", ("group", "rows"), [["a longer name", "5"], ["b", "12345"]])
    assert list(table.text()) == ["a title", "group           rows", "a longer name      5", "b              12345"]
