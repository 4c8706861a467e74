"""What a grid search prints: a table with what differs, and readable numbers."""

from __future__ import annotations

import doctest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from model_training_framework import ExperimentConfig, GridSearchResult
from model_training_framework.config import ExecutionMode, ExperimentState, GridExperiment
from model_training_framework.prediction import predict_experiment
from model_training_framework.utils import tables
from tests.launch.examples import small, transformer


def row(name: str, state: ExperimentState = ExperimentState.PLANNED, **more: Any) -> GridExperiment:
    config = ExperimentConfig.from_dict({**small(), "experiment_name": name})
    return GridExperiment(config, more.pop("differs", {}), state, **more)


def text(*rows: GridExperiment) -> list[str]:
    return GridSearchResult(ExecutionMode.DRY_RUN, rows).text().splitlines()


def predicted(**sections: dict[str, Any]) -> GridExperiment:
    config = ExperimentConfig.from_dict(transformer(**sections))
    return GridExperiment(config, {}, ExperimentState.PLANNED, forecast=predict_experiment(config))


def test_quantities_read_as_documented() -> None:
    assert doctest.testmod(tables).failed == 0


@given(st.floats(1e-7, 1e9))
def test_durations_have_no_exponent_and_keep_three_digits(seconds: float) -> None:
    said, unit = tables.interval(seconds, seconds, seconds).partition(" (")[0].split()
    size = dict(tables.UNITS_S)[unit]
    assert "e" not in said
    assert abs(float(said.replace(",", "")) * size - seconds) <= max(0.006 * seconds, 0.6e-9)


def test_keys_become_columns_by_their_shortest_distinct_names() -> None:
    lines = text(
        row("a", differs={"model.name": "x", "optimizer.name": "y", "training.batch_size": 1}),
        row("b", differs={"model.hidden_size": 64}),
    )
    assert lines[0].split() == ["experiment", "model.name", "optimizer.name", "batch_size", "hidden_size", "state"]
    assert lines[1].split() == ["a", "x", "y", "1", "planned"]
    assert lines[2].index("64") == lines[0].index("hidden_size")
    assert lines[-1] == "2 planned"


def test_a_key_that_is_called_like_a_column_keeps_its_section() -> None:
    assert "custom_params.state" in text(row("a", differs={"custom_params.state": 1}))[1]


def test_long_values_are_cut() -> None:
    values = {"name": "cosine", "warmup_steps": 1000, "min_lr": 1e-6}
    line = text(row("a", differs={"scheduler": values}), row("b"))[1]
    assert "…" in line
    assert len(line) < 60


def test_reasons_stand_below_once_with_whom_they_concern() -> None:
    rows = [row(f"n{number}", ExperimentState.REFUSED, reason="too large") for number in range(5)]
    lines = text(*rows, row("other"), row("bad", ExperimentState.FAILED, reason="status 3", job_id="12_3"))
    assert lines.count("n0, n1, n2 and 2 more: too large") == 1
    assert "bad: status 3" in lines
    assert lines[-1] == "1 failed, 1 planned, 5 refused"
    assert text(rows[0], rows[1])[-2] == "all 2: too large"


def test_what_all_predictions_share_is_said_once() -> None:
    first, second = predicted(training={"batch_size": 1}), predicted(training={"batch_size": 2})
    lines = text(first, second)
    (common,) = [line for line in lines if line.startswith("all: ")]
    assert "GPUs 4" in common
    assert "system Perlmutter" in common
    assert "tokens/s" in lines[0]
    assert "GPU-hours" in lines[0]
    assert not any("e-" in line for line in lines)


def test_a_single_experiment_is_said_line_by_line() -> None:
    lines = text(predicted(training={"batch_size": 1}))
    assert ["system", "Perlmutter"] in [line.split() for line in lines]
    assert max(map(len, lines)) < 60
    assert text(row("a", ExperimentState.REFUSED, reason="too large"))[-1] == "a: too large"


def test_an_earlier_submission_is_told_from_a_new_one() -> None:
    lines = text(row("a", ExperimentState.SUBMITTED, is_new=False, job_id="7"), row("b", ExperimentState.SUBMITTED))
    assert "submitted, earlier" in lines[1]
    assert "earlier" not in lines[2]


def test_nothing_is_said_as_such() -> None:
    assert text() == ["no experiments"]
