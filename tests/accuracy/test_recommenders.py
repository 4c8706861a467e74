"""Published steps of recommenders, and the plans that they were trained with."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.workload.plan import Sharding
from tests.accuracy.mlperf_plans import mlperf_plan
from tests.accuracy.recommender_rows import FILE, FOLDER, MLPERF, SOK, ComparedStep, compare, read_rows, report
from tests.accuracy.tolerances import MISSED_RECOMMENDERS, MLPERF_RECOMMENDER_MAPE, RECOMMENDER


@pytest.fixture(scope="module")
def compared(truth: Path) -> list[ComparedStep]:
    rows, _ = read_rows(truth / FILE)
    return list(compare(rows))


def test_mlperf_steps_are_within_twenty_percent_and_their_intervals(compared: list[ComparedStep]) -> None:
    rows = [row for row in compared if row.row.group == MLPERF]
    errors = {row.row.identity: f"{row.error:+.1%}" for row in rows}
    assert len({(row.row.gpu, row.row.num_gpus) for row in rows}) == 6
    assert all(abs(row.error) <= RECOMMENDER for row in rows), errors
    assert fmean(abs(row.error) for row in rows) <= MLPERF_RECOMMENDER_MAPE
    assert all(row.is_inside for row in rows), errors


def test_no_row_misses_twenty_percent_without_an_explanation(compared: list[ComparedStep]) -> None:
    assert {row.row.identity for row in compared if abs(row.error) > RECOMMENDER} == set(MISSED_RECOMMENDERS)


def test_tensorflow_steps_lie_in_their_intervals(compared: list[ComparedStep]) -> None:
    rows = [row for row in compared if row.row.group == SOK]
    assert rows
    assert all(row.is_inside for row in rows)


def test_report_counts_every_row(truth: Path) -> None:
    rows, others = read_rows(truth / FILE)
    with (truth / FILE).open(encoding="utf-8") as file:
        assert len(rows) + sum(others.values()) == sum(1 for _ in file) - 1
    assert sum(f"left out, {count} rows: {why}" in set(report(truth / FILE)) for why, count in others.items()) == len(
        others
    )


def test_plan_of_one_node_is_that_of_the_submissions() -> None:
    # As the planner prints it for eight GPUs: the table of 100 keys a sample in eight parts, that of 27 in two, the
    # others whole, tables of fewer than 7,813 rows replicated.
    (layer,) = read_hugectr(FOLDER / "dlrm_dcnv2.json").model.embeddings
    plan = mlperf_plan(layer, 8, 8)
    parts = {number: len(sharded.ranks) for number, sharded in enumerate(plan.tables)}
    replicated = {n for n, sharded in enumerate(plan.tables) if sharded.sharding is Sharding.DATA_PARALLEL}
    assert replicated == {3, 5, 6, 7, 8, 12, 13, 15, 16, 17, 18, 24, 25}
    assert parts[20] == 8
    assert parts[21] == 2
    assert all(parts[number] == 1 for number in set(parts) - replicated - {20, 21})


@pytest.mark.parametrize("nodes", [8, 16])
def test_plan_of_several_nodes_spreads_rows_over_whole_nodes(nodes: int) -> None:
    (layer,) = read_hugectr(FOLDER / "dlrm_dcnv2.json").model.embeddings
    plan = mlperf_plan(layer, nodes * 8, 8)
    for sharded in plan.tables:
        if sharded.sharding is not Sharding.DATA_PARALLEL:
            assert sharded.sharding is Sharding.TABLE_ROW_WISE
            homes = {rank // 8 for rank in sharded.ranks}
            assert sharded.ranks == tuple(rank for home in sorted(homes) for rank in range(home * 8, home * 8 + 8))
    assert {sharded.ranks for sharded in plan.tables}
