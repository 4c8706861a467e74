"""The command line: what a newcomer types, what goes wrong, exit codes 0, 1 and 2, and one line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from model_training_framework import commands
from model_training_framework.__main__ import main
from tests.launch.examples import small, transformer
from tests.launch.fake_slurm import FakeSlurm, fake_slurm

ROOT = Path(__file__).resolve().parents[2]
GRID = {"name": "seeds", "parameters": {"seed": [1, 2]}}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    put("base.yaml", {**small(), "command": "echo says {experiment_name}; test ! -e fails"})
    put("grid.yaml", GRID)
    return folder


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm-bin", monkeypatch)


def put(name: str, content: dict[str, Any] | str) -> None:
    Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")


def command(line: str) -> list[str]:
    return line.split()


def test_grid_predicts_by_default(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    put("base.yaml", transformer())
    assert main(command("grid grid.yaml --base base.yaml")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["experiment", "seed", "state"], "what all have in common is said below"
    assert lines[-1] == "2 planned"
    assert not (project / "experiments").exists()


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("grid grid.yaml --base base.yaml --json")) == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["differs"] for row in content["experiments"]] == [{"seed": 1}, {"seed": 2}]
    assert main(command("submit base.yaml --mode local --json")) == 0
    assert json.loads(capsys.readouterr().out)["experiments"][0]["state"] == "completed"
    assert main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"], row["exit_status"], row["health"]) == ("small", "COMPLETED", 0, None)
    lines = [{"phase": "train", "step": step, "step_time_s": 0.5 + step % 3 / 100} for step in range(1, 101)]
    put("experiments/small/steps.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["health"]["state"], row["health"]["last_step"]) == ("healthy", 100)
    assert main(["status"]) == 0
    assert "healthy, 510 ms a step" in capsys.readouterr().out


def test_a_failed_experiment_is_exit_code_1_until_it_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fails").touch()
    again = command("grid grid.yaml --base base.yaml --mode local --naming sequential --max-concurrent-jobs 2")
    assert main(again) == 1
    assert "2 failed" in capsys.readouterr().out
    Path("fails").unlink()
    assert main(again) == 0
    assert main(again) == 0
    assert "completed, earlier" in capsys.readouterr().out
    assert main(["status"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert len(names) == 2
    assert main(["logs", names[0], "--lines", "1"]) == 0
    assert capsys.readouterr().out == f"says {names[0]}\n"


def test_refused_is_exit_code_1_and_force_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    put("large.yaml", transformer(model={"hidden_size": 8192, "num_layers": 80, "num_heads": 64}))
    assert main(command("submit large.yaml")) == 1
    assert "too much" in capsys.readouterr().out
    assert main(command("submit large.yaml --force")) == 0


def test_submit_status_cancel(capsys: pytest.CaptureFixture[str], slurm: FakeSlurm) -> None:
    assert main(command("submit base.yaml --mode slurm")) == 0
    assert "100" in capsys.readouterr().out
    slurm.answer("squeue", "100|RUNNING|None|submit.sbatch\n")
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["small", "RUNNING", "100", "0", "-"]
    assert main(["cancel", "small"]) == 0
    assert capsys.readouterr().out == "small: cancelled\n"
    assert main(["cancel", "100"]) == 0
    assert main(["cancel", "--all"]) == 0
    assert slurm.calls("scancel") == ["100", "100", "100"]
    slurm.answer("squeue", "100|CANCELLED|None|submit.sbatch\n")
    capsys.readouterr()
    assert main(["cancel", "--all"]) == 0
    assert capsys.readouterr().out == "small: had ended\n"


def test_status_says_why_a_job_waits(capsys: pytest.CaptureFixture[str], slurm: FakeSlurm) -> None:
    assert main(command("submit base.yaml --mode slurm")) == 0
    capsys.readouterr()
    for line, state, reason in (  # recorded from 22.05
        ("100|PENDING|JobHeldUser|submit.sbatch", "PENDING", "JobHeldUser"),
        ("100|PENDING|PartitionTimeLimit|submit.sbatch", "PENDING", "PartitionTimeLimit"),
        ("100|PENDING|PartitionNodeLimit|submit.sbatch", "PENDING", "PartitionNodeLimit"),
        ("100|FAILED|BadConstraints|submit.sbatch", "FAILED", "BadConstraints"),
        ("100|RUNNING|None|submit.sbatch", "RUNNING", ""),
        ("100_0|RUNNING|None|submit.sbatch\n100_[1-2]|PENDING|JobArrayTaskLimit|submit.sbatch", "RUNNING", ""),
    ):
        slurm.answer("squeue", f"{line}\n")
        assert main(["status", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["state"], row["reason"]) == (state, reason)
        assert main(["status"]) == 0
        titles, cells = (line.split() for line in capsys.readouterr().out.splitlines())
        assert ("reason" in titles) == bool(reason), "the column is there where there is one"
        assert cells[:3] == ["small", state, reason or "100"]


def test_a_cluster_that_refuses(capsys: pytest.CaptureFixture[str], slurm: FakeSlurm) -> None:
    slurm.answer("sbatch", error="sbatch: error: invalid partition specified: gpu", status=1, call=1)
    assert main(command("submit base.yaml --mode slurm")) == 1
    assert "invalid partition specified: gpu" in capsys.readouterr().out
    assert main(command("submit base.yaml --mode slurm")) == 0, "nothing of the first is in the way"


def test_a_cluster_that_is_away(
    capsys: pytest.CaptureFixture[str], slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(command("submit base.yaml --mode slurm")) == 0
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", status=1)
    monkeypatch.setattr(commands, "AT_A_TERMINAL_S", 0.1)
    assert main(["status"]) == 2
    assert "no answer in 0 s: slurm_load_jobs error: Unable to contact" in capsys.readouterr().err


def test_an_empty_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "no experiments in" in capsys.readouterr().out
    assert main(["cancel", "--all"]) == 0
    assert capsys.readouterr().out == "nothing to cancel\n"


def test_from_another_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, project: Path) -> None:
    os.chdir(tmp_path)
    assert main(command("submit base.yaml --project project --mode local")) == 0
    assert (project / "experiments" / "small" / "config.yaml").is_file()
    assert main(command("submit project/base.yaml --project project --output elsewhere --mode local")) == 0
    assert (tmp_path / "elsewhere" / "small" / "config.yaml").is_file()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "COMMAND"),
        ("gird", "invalid choice: 'gird'"),
        ("grid grid.yaml", "--base"),
        ("grid absent.yaml --base base.yaml", "absent.yaml does not exist"),
        ("grid grid.yaml --base absent.yaml", "absent.yaml does not exist"),
        ("grid grid.yml --base base.yaml", "Did you mean grid.yaml?"),
        ("grid base.yaml --base base.yaml", "is not a known key of a grid"),
        ("grid . --base base.yaml", "is a folder"),
        ("grid typo.yaml --base base.yaml", "model.hiden_size is not a known key. Did you mean model.hidden_size?"),
        ("grid twice.yaml --base base.yaml", "are the same"),
        ("grid empty.yaml --base base.yaml", "is empty"),
        ("grid broken.yaml --base base.yaml", "not YAML"),
        ("grid grid.yaml --base base.yaml --naming age", "invalid choice: 'age'"),
        ("submit broken.json", "not JSON"),
        ("submit base.yaml --mode cloud", "invalid choice: 'cloud'"),
        ("submit base.yaml --max-concurrent-jobs 0", "it must be 1 or more"),
        ("submit base.yaml --max-concurrent-jobs two", "invalid int value: 'two'"),
        ("submit base.yaml --template absent", "No such file or directory"),
        ("submit base.yaml --template base.yaml", "sbatch wants a shell there"),
        ("submit base.yaml --project absent", "no such folder"),
        ("submit base.yaml --mode local --output base.yaml", "cannot be written"),
        ("status nobody", "nobody is no submitted experiment"),
        ("cancel", "name the experiments to cancel, or give --all"),
        ("cancel nobody", "nobody is no submitted experiment"),
        ("cancel nobody --all", "name the experiments to cancel, or give --all"),
        ("logs nobody", "has no output"),
        ("logs nobody --lines 0", "it must be 1 or more"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    put("typo.yaml", {"name": "g", "parameters": {"model.hiden_size": [1]}})
    put("twice.yaml", {"name": "g", "parameters": {"seed": [1, 1]}})
    put("empty.yaml", "")
    put("broken.yaml", "name: g\n  parameters: 3\n")
    put("broken.json", "{")
    assert main(command(line)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert printed.err.count("\n") == 1
    assert said in printed.err
    assert "Errno" not in printed.err


def test_a_damaged_record_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("submit base.yaml --mode local")) == 0
    Path("experiments/small/submission.json").write_text("{")
    capsys.readouterr()
    for line in ("submit base.yaml --mode local", "status"):
        assert main(command(line)) == 2
        printed = capsys.readouterr().err
        assert "submission.json cannot be read" in printed
        assert printed.count("\n") == 1


def started(*words: str) -> subprocess.Popen[str]:
    """Start the command line in a process of its own."""
    path = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "slurm"))
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "model_training_framework", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip


def test_control_c_tells_what_runs_to_save_and_the_same_command_goes_on() -> None:
    put("base.yaml", {**small(), "command": "test -e saved && exit 0; touch begun; trap 'touch saved; exit 75' TERM; "
                                            "while true; do sleep 0.05; done"})  # fmt: skip
    words = command("submit base.yaml --mode local")
    process = started(*words)
    deadline = time.monotonic() + 20
    while not Path("begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said == "interrupted; the same command goes on\n"
    assert Path("saved").exists()
    assert main(words) == 0


def test_output_that_nobody_reads() -> None:
    process = started(*command("grid grid.yaml --base base.yaml"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
