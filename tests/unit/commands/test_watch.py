"""``watch``: from files to answers, pages, metrics and exit codes; alone, twice at once, interrupted, on bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from predictor import predict
from predictor.__main__ import main
from predictor.watch.prometheus import served
from predictor.watch.words import seconds

ROOT = Path(__file__).resolve().parents[3]
GALLERY = ROOT / "docs" / "gallery"
CONFIG, LOG, DEVICES = (str(GALLERY / name) for name in ("llama-8b.yml", "llama-8b.log", "nvidia-smi.csv"))
PATIENCE_S = 60.0
PREDICTED = f"Predicted {seconds(predict(CONFIG).step.us / 1e6)} "


def test_the_example_is_slower_than_it_should_be_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", CONFIG, "--log", LOG, DEVICES, "--once"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Health    Slower than it should be, at step 800: ")
    assert any(line.startswith(f"Trust     {PREDICTED}") for line in rest)
    assert any("thermal" in line for line in rest)


@pytest.mark.parametrize(("percent", "code"), [("5", 3), ("50", 0)])
def test_slower_than_allowed_is_exit_code_3(percent: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", CONFIG, "--log", LOG, "--once", "--allow", percent]) == code
    assert capsys.readouterr().out.startswith("Health")


def test_without_a_configuration_the_run_is_held_against_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--log", LOG, "--once", "--allow", "1"]) == 3
    assert "Judged by the run's own steps" in capsys.readouterr().out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", CONFIG, "--log", LOG, "--once", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["format"] == "estimate-train-time/watch/1"
    assert (content["state"], content["last_step"]) == ("slower", 800)
    assert content["expected"]["num_gpus"] == 64


def test_a_run_s_folder_holds_log_and_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("llama-8b.yml", "llama-8b.log"):
        shutil.copy(GALLERY / name, tmp_path)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert PREDICTED in capsys.readouterr().out


def test_a_folder_without_a_configuration_is_judged_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(LOG, tmp_path)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    captured = capsys.readouterr()
    assert "Judged by the run's own steps" in captured.out
    assert "no prediction" in captured.err
    assert main(["watch", str(tmp_path), "--once", "--system", "H100"]) == 2  # it was asked for


def test_a_log_of_another_batch_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "runs.csv"
    changed = ["watch", CONFIG, "--log", LOG, "--once", "--set", "training.micro_batch_size=2"]
    assert main(changed) == 0
    assert "64 samples a step; the configuration has 128" in " ".join(capsys.readouterr().out.split())
    assert main([*changed, "--record", str(table)]) == 2
    assert "64 samples a step" in capsys.readouterr().err
    assert not table.exists()


def test_a_model_and_its_options_predict(capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "llama3-8b", "--system", "H100", "--gpus", "64", "--global-batch-size", "64"]
    assert main(["watch", *model, "--log", LOG, "--once", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["expected"]["source"] == "llama3-8b on H100"
    assert content["expected"]["calibrated_s"] is None  # slower than the interval from the first step on
    assert content["findings"][0]["change"]["kind"] == "whole run"


def test_a_recommender_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    recommender = [str(ROOT / "profiling" / "verify_recommender" / "dlrm.json"), "--system", "H100", "--gpus", "8"]
    assert main(["watch", *recommender, "--log", LOG, "--once", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["expected"]
    assert (expected["num_gpus"], expected["tokens"]) == (8, None)
    assert {"lookup", "forward"} <= expected["parts_s"].keys()


def test_a_run_is_recorded_for_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = str(tmp_path / "runs.csv")
    assert main(["watch", CONFIG, "--log", LOG, "--once", "--record", table]) == 0
    assert main(["verify", table]) == 0
    assert "llama-8b.log" in capsys.readouterr().out


def test_two_runs_are_compared_from_the_step_on_where_they_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    shorter = tmp_path / "before.log"
    shorter.write_text("".join(lines[:50]))
    assert main(["watch", "--log", LOG, "--against", str(shorter), "--once", "--allow", "5"]) == 0
    assert "As fast as before.log" in capsys.readouterr().out
    assert main(["watch", "--log", LOG, "--against", str(shorter), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "estimate-train-time/watch-comparison/1"


def test_a_change_at_the_step_at_which_the_other_run_changed_is_the_plan_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("this.log", "other.log"):
        rows = [
            f"step:{at}/600 step_avg:{100 if at < 300 else 130}ms took:{100 if at < 300 else 130}ms"
            for at in range(600)
        ]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    pattern = r"step:(?P<step>\d+)/.*took:(?P<ms>\d+)ms"
    named = ["watch", "--log", str(tmp_path / "this.log"), "--pattern", pattern, "--once", "--json"]
    assert main([*named, "--against", str(tmp_path / "other.log")]) == 0
    compared = json.loads(capsys.readouterr().out)
    (this,), (other,) = (compared[run]["findings"] for run in ("this", "other"))
    assert (this["is_expected"], other["is_expected"]) == (True, True)
    assert this["explanations"][0]["cause"] == other["explanations"][0]["cause"] == "workload_changed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([CONFIG, "--once"], "no log is named"),
        (["--log", "absent.log", "--once"], "absent.log"),
        (["--log", "/dev/null", "--once"], "neither a file nor a folder"),
        (["--log", LOG, "--once", "--pattern", "("], "--pattern"),
        (["--log", LOG, "--once", "--interval", "0"], "--interval is 0"),
        (["--log", LOG, "--once", "--allow", "-1"], "--allow is -1"),
        (["--log", LOG, "--prometheus", "70000"], "--prometheus is 70000"),
        (["--log", LOG, "--prometheus", "0", "--once"], "leave out --once"),
        (["--log", LOG, "--once", "--system", "H100"], "name a configuration"),
        (["--log", LOG, "--once", "--record", "runs.csv"], "--record needs"),
        (
            [CONFIG, "--log", LOG, "--once", "--record", "x.csv", "--set", "inter_node_gb_per_s=50"],
            "a row does not hold inter_node_gb_per_s=50",
        ),
        ([CONFIG, "--log", LOG, "--once", "--record", "/proc/runs.csv"], "--record /proc/runs.csv: "),
        (["--log", LOG, "--once", "--html", "/nowhere/page.html"], "there is no folder"),
        (["--log", LOG, "--once", "--html", LOG], "the same command reads"),
        (["--log", LOG, "--once", "--against", "absent.log"], "absent.log"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_empty_log_has_no_answer_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.log").touch()
    assert main(["watch", CONFIG, "--log", str(tmp_path / "empty.log"), "--once"]) == 1
    assert capsys.readouterr().out.startswith("Health    Waiting for the first step")


def test_a_port_that_is_taken_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with served(0, str) as port:
        assert main(["watch", "--log", LOG, "--prometheus", str(port)]) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["watch", "--log", LOG, "--once", "--html", str(tmp_path / "page.html")]) == 2
    assert "page.html" in capsys.readouterr().err


@contextmanager
def following(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that follows a run, and end it."""
    command = [sys.executable, "-m", "predictor", "watch", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    content: dict[str, object] = json.loads(process.stdout.readline())
    return content


def test_a_growing_log_is_followed_to_its_end(tmp_path: Path) -> None:
    lines = Path(LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    log, page = tmp_path / "train.log", tmp_path / "page.html"
    words = ("--log", str(log), "--json", "--interval", "1", "--html", str(page))
    with following(*words) as process, following(*words) as other:  # both write the same page
        time.sleep(1.0)
        log.write_text("".join(lines[:20]))  # it was not there yet
        next(line for line in iter(lambda: line_of(process), None) if line["last_step"] == 120)
        with log.open("a") as stream:
            stream.write(lines[20])
            stream.write(lines[21][:60])
            stream.flush()
            seen = next(line for line in iter(lambda: line_of(process), None) if line["last_step"] == 130)
            assert "http-equiv" in page.read_text(encoding="utf-8")
            stream.write(lines[21][60:])
            stream.write("[titan] 2026-11-27 08:34:30,000 - root - INFO - Training completed\n")
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert other.wait(PATIENCE_S) == 0
    last = json.loads(out.splitlines()[-1])
    assert seen["state"] in ("warming_up", "healthy")
    assert (last["state"], last["last_step"]) == ("ended", 140)
    assert "http-equiv" not in page.read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"train.log", "page.html"}


def test_ctrl_c_ends_with_what_is_known_and_frees_the_port(tmp_path: Path) -> None:
    log = shutil.copy(LOG, tmp_path / "train.log")
    with following("--log", str(log), "--prometheus", "0") as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().split(":")[-1].removesuffix("/metrics\n"))
        process.stderr.readline()  # the first line about the run: it is read
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", "/metrics")
        assert b"training_run_last_step 800.0" in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    assert out.startswith("Health")
    with served(port, str):
        pass
