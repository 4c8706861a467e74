"""Records of measured steps and runs: what is read, what is refused in one line, and what the numbers of a run are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor.replay.files.measured_run import noise, read_launches, read_measured_run, relative_spread
from predictor.replay.files.measured_step import OperatorTime, read_measured_steps, record_path
from predictor.replay.files.record_model import RecordError
from predictor.replay.files.verified_run import read_verified_run
from tests.unit.measured_runs import OPERATORS, write_launch

CONFIG: dict[str, Any] = {"model": {"num_layers": 2}}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_launch(tmp_path, CONFIG, operators=OPERATORS, profiled_us=(1100.0, 1200.0, 1150.0))
    record = read_measured_steps(record_path(tmp_path, 0))
    assert record.provenance.operators == OPERATORS
    assert record.provenance.configuration == CONFIG
    assert [span.name for span in record.part_spans] == ["forward", "backward", "optimizer"]
    assert [span.name for span in record.profiled_spans] == [operator.name for operator in OPERATORS]
    written = json.loads(record_path(tmp_path, 0).read_text())["otherData"]["operators"][0]
    assert written["pass"] == "forward"


def test_records_without_operators_read_as_before(tmp_path: Path) -> None:
    write_launch(tmp_path, CONFIG)
    path = record_path(tmp_path, 0)
    document = json.loads(path.read_text())
    for field in ("pipeline_stage", "driver", "threads", "profiled_us", "operators"):
        del document["otherData"][field]
    path.write_text(json.dumps(document))
    provenance = read_measured_steps(path).provenance
    assert (provenance.pipeline_stage, provenance.threads, provenance.operators) == (0, None, ())


def test_a_step_takes_as_long_as_its_slowest_rank(tmp_path: Path) -> None:
    samples = {"samples_us": (10.0, 40.0, 20.0)}, {"samples_us": (30.0, 20.0, 10.0), "pipeline_stage": 1}
    run = read_measured_run(write_launch(tmp_path, CONFIG, 2, ranks=samples))
    assert run.samples_us == (30.0, 40.0, 20.0)
    assert run.step_us == 30.0
    assert run.stages == [0, 1]
    assert run.part_us(1, "backward") == pytest.approx(0.6 * 20.0)
    assert run.part_us(0, "embedding") is None
    assert run.spread == pytest.approx(relative_spread([20.0, 30.0, 40.0])) == pytest.approx(10.0 / 30.0)


def test_noise_is_how_far_launches_are_apart(tmp_path: Path) -> None:
    for number, us in ((1, 100.0), (2, 104.0), (10, 102.0)):
        write_launch(tmp_path / f"run-{number}", CONFIG, samples_us=(us, us, us))
    launches = read_launches(tmp_path)
    assert [launch.folder.name for launch in launches] == ["run-1", "run-2", "run-10"]
    assert noise(launches) == pytest.approx(4.0 / 102.0)
    assert noise(launches[:1]) is None


def break_record(folder: Path, **changes: Any) -> None:
    path = record_path(folder, 0)
    document = json.loads(path.read_text())
    document["otherData"] |= changes
    path.write_text(json.dumps(document))


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown key": ({"made_up": 1}, "made_up is not a known key"),
    "a sample that is no number": ({"samples_us": ["fast"]}, "samples_us.0 is 'fast': "),
    "parts of other steps": ({"parts_us": {"data": [1.0]}}, "parts_us.data has 1 of 3 samples"),
    "an operator of no pass": ({"operators": [{"pass": "sideways"}]}, "operators.0.pass is 'sideways': "),
    "another world": ({"world_size": 3}, "has world_size 2 and rank-00000.json 3"),
    "another configuration": ({"config_hash": "abc"}, "has config_hash"),
    "other steps": ({"samples_us": [1.0], "parts_us": {}}, "has 3 steps and rank-00000.json 1"),
    "the same rank": ({"rank": 1}, "rank 0 is missing"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_run_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    changes, expected = DAMAGES[case]
    write_launch(tmp_path, CONFIG, 2)
    break_record(tmp_path, **changes)
    with pytest.raises(RecordError) as caught:
        read_measured_run(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_torn_lost_and_mixed_records_are_refused(tmp_path: Path) -> None:
    write_launch(tmp_path / "run-1", CONFIG, 2)
    write_launch(tmp_path / "run-2", CONFIG | {"other": 1}, 2)
    with pytest.raises(RecordError, match="another configuration or device"):
        read_launches(tmp_path)
    torn = record_path(tmp_path / "run-1", 1)
    torn.write_text(torn.read_text()[:200])
    with pytest.raises(RecordError, match="does not read as JSON"):
        read_measured_run(tmp_path / "run-1")
    torn.unlink()
    with pytest.raises(RecordError, match="of 2 ranks, but rank 1 is missing"):
        read_measured_run(tmp_path / "run-1")
    with pytest.raises(RecordError, match="no recorded run"):
        read_launches(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"comparison\.json: No such file"):
        read_verified_run(tmp_path / "comparison.json")


def test_an_operator_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="samples_us"):
        OperatorTime(step_pass="forward", name="ffn_up", count=1, samples_us=())
