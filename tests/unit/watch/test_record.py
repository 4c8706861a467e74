"""A watched run becomes a row that calibrate and verify read."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from predictor import predict
from predictor.core.base.errors import ConfigError
from predictor.core.predict.inputs import Configuration, read
from predictor.evidence.calibration.inputs import read_observations
from predictor.evidence.verification.run_tables import verified_table
from predictor.watch.record import record_run
from tests.unit.watched_examples import HEALTHY, WAITING

GALLERY = Path(__file__).resolve().parents[3] / "docs" / "gallery"
CONFIGURATION = read(GALLERY / "llama-8b.yml")


def record(path: Path, name: str = "run", median_s: float = 1.7, configuration: Configuration = CONFIGURATION) -> None:
    record_run(path, configuration, name, f"{name}.log: torchtitan", replace(HEALTHY, median_s=median_s), ())


def test_verify_and_calibrate_read_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    record(path)
    (run,) = verified_table(path, None).runs
    assert run.record.measured_us == pytest.approx(1.7e6)
    assert run.compared.seconds == pytest.approx(predict(GALLERY / "llama-8b.yml").step.us / 1e6)
    observations, failed = read_observations([str(path)], "H100")
    assert (len(observations), failed) == (1, [])


def test_a_row_joins_a_table_with_other_columns_and_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes((GALLERY / "runs.csv").read_bytes())
    record(path)
    record(path, "other", 1.8)
    record(path, median_s=1.9)
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == ["medium", "medium tp 2", "medium by 8", "other", "run"]
    assert [row["seconds"] for row in rows[-2:]] == ["1.8", "1.9"]
    observations, failed = read_observations([str(path)], "H100")
    assert (len(observations), failed) == (5, [])


def test_a_system_of_one_s_own_is_found_from_the_table(tmp_path: Path) -> None:
    own = CONFIGURATION._replace(content={**CONFIGURATION.content, "system": "our-cluster.yml"})
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "runs.csv"
    record(path, configuration=own)
    (run,) = verified_table(path, None).runs
    assert run.record.measured_us == pytest.approx(1.7e6)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", 'name,seconds\n"x', "name,seconds\n1\n"])
def test_a_file_that_is_no_table_of_runs_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--record"):
        record(path)
    assert path.read_text() == content


def test_a_run_of_another_configuration_or_without_a_step_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    with pytest.raises(ConfigError, match="other tokens"):
        record_run(path, CONFIGURATION, "run", "", HEALTHY, ("The log has other tokens.",))
    with pytest.raises(ConfigError, match="no timed step"):
        record_run(path, CONFIGURATION, "run", "", WAITING, ())
    assert not path.exists()
