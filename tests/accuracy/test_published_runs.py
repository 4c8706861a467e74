"""Step times that others published, on clusters without measurements here: A100 operators, links from a data sheet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from predictor.core.plan.loading import prepare
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import Conditions
from predictor.evidence.published.runs import published_runs
from predictor.evidence.published.tables import published_tables
from predictor.evidence.verification.measured import Compared, MeasuredStep
from tests.accuracy.compare_steps import compare
from tests.accuracy.tolerances import PUBLISHED_MAPE


@pytest.fixture(scope="module")
def compared() -> list[Compared]:
    return [compare(step) for step in published_runs()]


def test_every_table_is_within_ten_percent_on_average(compared: list[Compared]) -> None:
    tables: dict[str, list[Compared]] = defaultdict(list)
    for row in compared:
        tables[row.step.table].append(row)
    assert len(tables) == 2
    for table, rows in tables.items():
        errors = [row.prediction.modelled_us / 1e6 / row.step.seconds - 1.0 for row in rows]  # of the transfer alone
        assert fmean(map(abs, errors)) <= PUBLISHED_MAPE, table


def test_every_row_is_inside_its_interval(compared: list[Compared]) -> None:
    assert [row.step.label for row in compared if not row.is_inside] == []


def test_papers_read_by_hand_and_converted_rows_are_the_same_runs(truth: Path) -> None:
    def run_of(step: MeasuredStep) -> TrainingRun:
        return replace(prepare(step.config, Path.cwd()).run, framework=None, conditions=Conditions.MODEL)

    groups = {"Narayanan 2021", "Korthikanti 2022"}
    rows = [step for step in published_tables(truth).steps if step.groups[0] in groups]
    assert rows
    by_hand = {run_of(step): step for step in published_runs()}
    for row in rows:
        assert by_hand[run_of(row)].seconds == pytest.approx(row.seconds, rel=0.005), row.label


def test_recomputing_less_and_splitting_the_sequence_saves_about_what_was_published(compared: list[Compared]) -> None:
    # Korthikanti et al. 2022, table 5: 29.0, 31.8, 29.7 and 32.1 % more throughput.
    times: dict[str, dict[str, Compared]] = defaultdict(dict)
    for row in compared:
        if row.step.table.startswith("Korthikanti"):
            model, _, recompute = row.step.name.partition(", recompute ")
            times[model][recompute] = row
    for model, both in times.items():
        predicted = both["full"].seconds / both["selective"].seconds
        assert predicted == pytest.approx(both["full"].step.seconds / both["selective"].step.seconds, abs=0.1), model
