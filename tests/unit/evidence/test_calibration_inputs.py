"""What calibration reads: records of verified runs and of traced steps, tables, and folders of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.operator import Direction
from predictor.core.plan.loading import open_measured
from predictor.core.schema.finding import find_folder
from predictor.evidence.calibration.answer import calibrate
from predictor.evidence.calibration.inputs import read_observations
from predictor.evidence.verification.configurations import configured
from predictor.evidence.verification.measured import MeasuredStep
from predictor.evidence.verification.runs import verified
from predictor.replay.files.verified_run import write_verified_run
from predictor.replay.record import TracedOperatorTimes, TracedStepRecord
from tests.unit.calibration_runs import BASE, SLOWER, content_of, seconds_of, write_run

COLUMNS = (
    "name,seconds,model.num_layers,model.hidden_size,model.num_attention_heads,model.sequence_length,"
    "training.micro_batch_size,training.num_micro_batches"
)


def verified_folder(folder: Path, name: str, noise: float | None) -> Path:
    folder.mkdir()
    configuration = configured(name, content_of(name), folder)
    step = MeasuredStep("", name, seconds_of(name, SLOWER), configuration.num_gpus, configuration.content)
    record = verified(configuration, step).record.model_copy(update={"noise": noise})
    write_verified_run(folder, record)
    return folder


def traced(path: Path, slower: float, precision: str = "fp16") -> Path:
    """Write a record of two products and an activation, which take ``slower`` times as long as published."""
    system = open_measured(find_folder(BASE, Path.cwd()), "fp16")
    rows = []
    for name, shape in (("ffn_up", (4096, 2048, 8192)), ("ffn_up", (4096, 8192, 2048)), ("gelu", (4096, 8192))):
        us = slower * system.cost(catalogue()[name], Direction.FORWARD, shape).us
        rows.append(
            TracedOperatorTimes(
                name="aten::mm",
                operator=name,
                shape=shape,
                direction="forward",
                step_pass="forward",
                shapes=(),
                dtypes=(),
                precision=precision,
                samples_us=(us, us),
            )
        )
    record = TracedStepRecord(
        label="step",
        rank=0,
        world_size=1,
        backend="nccl",
        device="A100",
        step_us=1e4,
        operators=tuple(rows),
        collectives=(),
    )
    path.write_text(record.model_dump_json(), encoding="utf-8")
    return path


def test_a_verified_run_is_read_with_its_noise(tmp_path: Path) -> None:
    quiet, _ = read_observations([str(verified_folder(tmp_path / "quiet", "plain", 0.0))], BASE)
    loud, _ = read_observations([str(verified_folder(tmp_path / "loud", "plain", 0.2))], BASE)
    assert loud[0].measured_us == pytest.approx(1e6 * seconds_of("plain", SLOWER))
    assert quiet[0].noise < loud[0].noise
    assert (quiet[0].name, quiet[0].same_as) == ("plain", loud[0].same_as)


def test_a_traced_step_moves_the_components_that_it_shows(tmp_path: Path) -> None:
    factors = calibrate([str(traced(tmp_path / "rank-0.json", 1.3))], BASE).calibration(BASE).factors
    assert 1.1 < factors["compute"].factor < 1.3
    assert set(factors) == {"compute", "memory_bound"}


def test_a_trace_in_a_precision_that_was_not_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can time none of its operators"):
        read_observations([str(traced(tmp_path / "rank-0.json", 1.3, "fp32"))], BASE)


def test_a_folder_holds_runs_of_every_kind(tmp_path: Path) -> None:
    write_run(tmp_path, "long")
    verified_folder(tmp_path / "verified", "wide", None)
    traced(tmp_path / "rank-0.json", 1.3)
    observations, failed = read_observations([str(tmp_path)], BASE)
    names = {observation.name for observation in observations}
    assert names == {"long", "wide", "step rank 0, compute", "step rank 0, memory_bound"}
    assert not failed


def test_an_empty_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no measured step"):
        read_observations([str(tmp_path)], BASE)


def test_rows_that_cannot_be_predicted_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{COLUMNS}\ngood,0.4,8,2048,16,2048,2,4\nodd,0.8,8,2048,15,2048,2,4\n", encoding="utf-8")
    assert main(["calibrate", str(path), "--system", BASE, "--out", str(tmp_path / "mine")]) == 1
    assert "not used: odd" in capsys.readouterr().out
    assert (tmp_path / "mine" / "system.yaml").is_file()


def test_a_base_of_ones_own_is_found_from_its_calibration(tmp_path: Path) -> None:
    base = tmp_path / "published" / "ours"
    shutil.copytree(find_folder(BASE, Path.cwd()), base)
    run = str(write_run(tmp_path, "plain"))
    assert main(["calibrate", run, "--system", str(base), "--out", str(tmp_path / "made" / "mine")]) == 0
    mine = open_measured(tmp_path / "made" / "mine", "fp16")
    calibration = mine.hardware.calibration
    assert calibration is not None
    assert calibration.base == "../published/ours"
    assert mine.files.folder.resolve() == base.resolve()
