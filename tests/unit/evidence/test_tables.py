"""Runs of others: a table of configurations and seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import Prediction, predict
from predictor.core.workload.run import TrainingRun
from predictor.evidence.verification.run_tables import verified_table
from predictor.evidence.verification.runs import Verified
from tests.unit.examples import full_form, write

Capture = pytest.CaptureFixture[str]
COLUMNS = (
    "name,seconds,model.num_layers,model.hidden_size,model.num_attention_heads,model.sequence_length,"
    "training.micro_batch_size,training.num_micro_batches,parallelism.overlap_gradient_reduction"
)
ROW = "small,0.5,8,2048,16,2048,2,4,true"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run_of(verified: Verified) -> TrainingRun:
    prediction = verified.compared.prediction
    assert isinstance(prediction, Prediction)
    return prediction.run


def test_a_row_is_the_configuration_that_its_columns_say(tmp_path: Path) -> None:
    (verified,) = verified_table(table(tmp_path, COLUMNS, ROW), "Perlmutter").runs
    step, run = verified.compared.step, run_of(verified)
    assert (step.name, step.seconds, step.table, step.num_gpus) == ("small", 0.5, "runs", 1)
    assert (run.model.num_layers, run.micro_batch_size, run.overlap_gradient_reduction) == (8, 2, True)


def test_columns_lie_over_the_file_that_a_row_names(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    write(full_form(), tmp_path / "configs" / "gpt.yaml")
    path = table(
        tmp_path,
        "name,seconds,config,training.micro_batch_size,parallelism.layers_per_stage,system,statistic,source",
        "as it is,1.5,configs/gpt.yaml,,,,median,a paper",
        "changed,2.5,configs/gpt.yaml,4,[8],Vista,,",
    )
    first, second = verified_table(path, None).runs
    assert (run_of(first).micro_batch_size, first.compared.system.name) == (2, "Perlmutter")
    assert (run_of(second).micro_batch_size, second.compared.system.name) == (4, "Vista")
    assert run_of(second).layers_per_stage == (8,)
    told = [(run.compared.step.statistic, run.compared.step.table) for run in (first, second)]
    assert told == [("median", "a paper"), ("", "runs")]


def test_a_table_is_compared_from_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    path = table(tmp_path, COLUMNS, ROW, ROW.replace("small", "again").replace("0.5", "5"))
    assert main(["verify", str(path), "--system", "Perlmutter", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    first, second = answer["runs"]
    loaded = prepare({**first["configuration"], "system": "Perlmutter"}, tmp_path)
    predicted = predict(loaded.run, loaded.system).step
    assert first["predicted"]["us"] == pytest.approx(predicted.us)
    assert first["error"] == pytest.approx(predicted.us / 0.5e6 - 1.0)
    assert (first["launches"], first["noise"], first["device"], first["parts"]) == ([], None, None, [])
    assert second["inside"] is False
    assert answer["summary"]["worst_error"] == pytest.approx(max(abs(first["error"]), abs(second["error"])))
    assert main(["verify", str(path), "--system", "Perlmutter"]) == 0
    assert "2 runs: median absolute error" in capsys.readouterr().out


def test_one_row_is_said_to_be_as_reported(tmp_path: Path, capsys: Capture) -> None:
    assert main(["verify", str(table(tmp_path, COLUMNS, ROW)), "--system", "Perlmutter"]) == 0
    assert "The measured time is as reported: runs." in capsys.readouterr().out


REFUSED: dict[str, tuple[list[str], str]] = {
    "no seconds": (["name,model.num_layers", "a,2"], "has no column seconds"),
    "an unknown column": ([COLUMNS + ",second", ROW + ",1"], "column second is not known. Did you mean seconds?"),
    "an unknown section": ([COLUMNS + ",modell.x", ROW + ",1"], "column modell.x is not known"),
    "an unknown key": ([COLUMNS + ",model.layers", ROW + ",1"], "line 2 (small): model.layers is not a known key"),
    "no number": ([COLUMNS, ROW.replace("0.5", "fast")], "line 2: seconds is 'fast'; expected a number above 0"),
    "nothing": ([COLUMNS, ROW.replace("0.5", "0")], "line 2: seconds is '0'"),
    "not finite": ([COLUMNS, ROW.replace("0.5", "inf")], "line 2: seconds is 'inf'"),
    "a short line": ([COLUMNS, ROW, "b,1"], "line 3: it does not have 9 cells"),
    "a long line": ([COLUMNS, ROW + ",1"], "line 2: it does not have 9 cells"),
    "only columns": ([COLUMNS], "has no runs"),
    "an empty file": ([""], "has no column name"),
    "a size that is none": ([COLUMNS, ROW.replace("2048,16", "2048,x")], "num_attention_heads (h) is 'x'"),
    "other ranks": ([COLUMNS + ",num_gpus", ROW + ",2"], "ran on 2 ranks; its configuration has 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_says_nothing_usable_is_one_line(case: str, tmp_path: Path, capsys: Capture) -> None:
    lines, expected = REFUSED[case]
    assert main(["verify", str(table(tmp_path, *lines)), "--system", "Perlmutter"]) == 2
    told = capsys.readouterr()
    assert expected in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_a_table_without_a_system_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="system is missing; --system NAME"):
        verified_table(table(tmp_path, COLUMNS, ROW), None)


def test_a_row_that_cannot_be_predicted_does_not_keep_the_others(tmp_path: Path, capsys: Capture) -> None:
    path = table(tmp_path, COLUMNS, ROW, ROW.replace("2048,16", "2048,17").replace("small", "odd"))
    assert main(["verify", str(path), "--system", "Perlmutter"]) == 1
    out = capsys.readouterr().out
    assert "1 run: median absolute error" in out
    assert "odd: not compared: " in out
    assert "line 3 (odd): num_attention_heads (h) is 17" in out
