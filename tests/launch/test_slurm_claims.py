"""A job claims its experiment before it runs it: one at a time, and none once it has ended with 0."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from model_training_framework.slurm import JobStatus
from model_training_framework.slurm.job_values import Place, values
from model_training_framework.slurm.template import read_template, render
from tests.launch.fake_slurm import experiment
from tests.launch.job_script import Script, wait_for

RUNS = "echo run >> runs"


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def claims(script: Script) -> list[dict[str, str]]:
    """Return the claims of the experiment, in their order."""
    files = sorted(script.experiment_dir.glob("claim.*"), key=lambda path: int(path.suffix[1:]))
    return [dict(line.split("=", 1) for line in path.read_text().splitlines()) for path in files]


def claimed(script: Script, **values: object) -> None:
    """Leave the claim of a job that has not said that it ended."""
    script.experiment_dir.mkdir(parents=True)
    found = {"job": "4", "host": os.uname().nodename, "pid": 1, "ticks": 0, "start": "then", "restart": 0} | values
    (script.experiment_dir / "claim.1").write_text("".join(f"{key}={value}\n" for key, value in found.items()))


def written(script: Script, text: str) -> str:
    """Return the job script that a template makes."""
    (script.folder / "own.sbatch").write_text(text)
    place = Place(script.experiment_dir, script.folder)
    return render(*read_template(script.folder / "own.sbatch"), values(experiment("one", RUNS), place, None, None))


def runs(script: Script) -> int:
    path = script.folder / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_claim_says_who_ran_it(script: Script) -> None:
    assert script.run(RUNS) == 0
    (claim,) = claims(script)
    assert (claim["job"], claim["host"], claim["restart"]) == ("5_2", os.uname().nodename, "0")
    assert claim["end"] >= claim["start"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_has_ended_with_0_is_not_run_again(script: Script, restarts: int) -> None:
    assert script.run(RUNS) == 0
    script.environment = {"SLURM_ARRAY_TASK_ID": "3"} if not restarts else {}
    for _ in range(2):
        assert script.run(RUNS, restarts=restarts) == 0, "a controller that lost its state says restart 0"
    assert runs(script) == 1
    assert script.end is JobStatus.COMPLETED


def test_what_has_failed_is_run_again(script: Script) -> None:
    assert script.run(f"{RUNS}; exit 3") == 3
    assert script.run(RUNS) == 0
    assert runs(script) == 2


@pytest.mark.parametrize("state", [state for state in JobStatus if state is not JobStatus.UNKNOWN])
def test_claim_of_another_job_holds_while_slurm_has_it(script: Script, state: JobStatus) -> None:
    claimed(script)
    script.says(str(state))
    process = script.start(RUNS)
    said, _ = process.communicate(timeout=30)
    assert "show job --oneliner 4" in script.calls("scontrol")
    if state.is_final:
        assert [claim["job"] for claim in claims(script)] == ["4", "5_2"]
        assert script.calls("srun"), "taken over"
        return
    assert process.returncode == 75
    assert "job 5_2: job 4 on" in said
    assert said.rstrip().endswith("has run this since then: nothing is done")
    assert said.count("\n") == 1, "one line"
    assert runs(script) == 0
    assert sorted(path.name for path in script.experiment_dir.iterdir()) == ["claim.1"], "nothing else is touched"


def test_claim_of_a_job_that_slurm_has_forgotten_is_taken_over(script: Script) -> None:
    claimed(script)
    (script.folder / "forgotten").touch()
    assert script.run(RUNS) == 0
    assert runs(script) == 1


def test_controller_that_is_away_is_no_answer_about_a_claim(script: Script) -> None:
    claimed(script)
    (script.folder / "away").write_text("1")
    assert script.run(RUNS) == 75
    assert runs(script) == 0


def test_requeued_job_takes_its_own_claim_over(script: Script) -> None:
    claimed(script, job="5_2", host="a node that was lost")
    script.says(restarts=1)
    assert script.run(RUNS, restarts=1) == 0
    assert [claim["restart"] for claim in claims(script)] == ["0", "1"]
    assert runs(script) == 1


def test_earlier_start_that_still_runs_here_is_waited_for(script: Script) -> None:
    first = script.start(f"{RUNS}; until [ -e go ]; do sleep 0.02; done")
    wait_for(lambda: runs(script) == 1)
    second = script.start(RUNS)
    wait_for(lambda: bool(list(script.experiment_dir.glob(f".claim.5_2.{second.pid}.*"))))
    assert second.poll() is None
    (script.folder / "go").touch()
    assert (first.wait(30), second.wait(30)) == (0, 0)
    assert runs(script) == 1
    assert "waits for its earlier start" in second.communicate()[0]


def test_earlier_start_that_was_killed_is_not_waited_for(script: Script) -> None:
    first = script.start(f"{RUNS}; until [ -e go ]; do sleep 0.02; done")
    wait_for(lambda: runs(script) == 1)
    first.kill()
    first.wait()
    assert script.run(RUNS) == 0
    assert runs(script) == 2
    (script.folder / "go").touch()


def test_of_many_jobs_at_once_one_runs(script: Script) -> None:
    processes = []
    for number in range(12):
        script.environment = {"SLURM_ARRAY_TASK_ID": str(number)}
        processes.append(script.start(f"{RUNS}; until [ -e go ]; do sleep 0.02; done"))
    wait_for(lambda: sum(process.poll() is not None for process in processes) == 11)
    (script.folder / "go").touch()
    assert sorted(process.wait(30) for process in processes) == [0] + [75] * 11
    assert runs(script) == 1


def test_start_that_was_taken_over_from_records_nothing(script: Script) -> None:
    process = script.start(f"{RUNS}; until [ -e go ]; do sleep 0.02; done; exit 3")
    wait_for(lambda: runs(script) == 1)
    (script.experiment_dir / "claim.2").write_text("job=5_2\n")
    (script.folder / "go").touch()
    assert process.wait(30) == 3
    assert script.end is None


@pytest.mark.parametrize(("host", "is_run"), [("elsewhere", False), (os.uname().nodename, True)])
def test_claim_of_a_run_outside_slurm(script: Script, host: str, is_run: bool) -> None:
    claimed(script, job="local-x_0", host=host, pid=2**22 + 1)
    process = script.start(RUNS)
    said, _ = process.communicate(timeout=30)
    assert runs(script) == is_run
    assert is_run or f"if it is gone, remove {script.experiment_dir}/claim.1" in said


def test_success_is_recorded_while_the_controller_is_away(script: Script) -> None:
    process = script.start(f"{RUNS}; echo 1000 > away")
    try:
        wait_for(lambda: script.end is JobStatus.COMPLETED)
        assert process.wait(10) == 0
    finally:
        (script.folder / "away").unlink()
        process.kill()


def test_template_of_the_users_own_runs_once_too(script: Script) -> None:
    text = "#!/bin/sh -eu\ncd {{project_dir}}\n{{command}}\n"
    claimed(script, job="5_2", end="now")
    made = written(script, text)
    for _ in range(2):
        subprocess.run(["sh", "-eu", "-c", made], check=True, env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "8"})
        (script.experiment_dir / "exit_code").write_text("0\n")
    assert runs(script) == 1
