"""An experiment runs once through a real Slurm, whoever is killed while it is submitted or runs.

``make test-launch`` runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from model_training_framework.slurm import JobStatus, SLURMLauncher
from tests.workflow.cluster import Cluster
from tests.workflow.conftest import ROOT, until
from tests.workflow.test_launch_slurm import (
    COUNT,
    END_S,
    START_S,
    TIMED,
    experiment,
    history,
    launcher,
    log,
    slurm,
    spans,
    text,
    wait_for,
)

__all__ = ["launcher", "slurm"]  # fixtures
pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]


def test_launcher_killed_between_sbatch_and_its_record(launcher: SLURMLauncher, slurm: Cluster) -> None:
    found = experiment("once", f"{COUNT} 50")
    job = launcher.submit_experiment(found)
    record = launcher.output_dir / "once" / "submission.json"
    record.write_text(record.read_text().replace(f'"job_id": "{job}"', '"job_id": null'))
    assert launcher.submit_experiment(found) == job
    wait_for(launcher, job, JobStatus.COMPLETED)
    assert history(launcher, "once") == [0]


LAUNCH = """\
import os, signal, sys
from pathlib import Path
from model_training_framework.slurm import SLURMLauncher, submission
from tests.workflow.test_launch_slurm import COUNT, experiment
folder = Path(sys.argv[1])
if "die" in sys.argv:
    submission.link_job = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
launcher = SLURMLauncher(output_dir=folder / "experiments", project_root=folder)
launcher.submit_experiment(experiment("once", f"{COUNT} 50"))
"""


def launch_elsewhere(folder: Path, *words: str, path: str = "") -> subprocess.Popen[bytes]:
    """Start a launcher of the experiment « once » in a process of its own, which can be killed."""
    environment = os.environ | {"PATH": path + os.environ["PATH"]}
    return subprocess.Popen([sys.executable, "-c", LAUNCH, str(folder), *words], cwd=ROOT, env=environment)


def slow_sbatch(folder: Path, first: str = "") -> str:
    """Return a folder for PATH with an sbatch that waits for a file « go » before it submits."""
    path = folder / "slow" / "sbatch"
    path.parent.mkdir()
    wait = f"touch {folder}/in_flight; until [ -e {folder}/go ]; do sleep 0.1; done"
    path.write_text(f'#!/bin/bash\n{first}\n{wait}\n{shutil.which("sbatch")} "$@"\ntouch {folder}/landed\n')
    path.chmod(0o755)
    return f"{path.parent}{os.pathsep}"


def are_ended(slurm: Cluster) -> bool:
    """Return whether nothing waits or runs."""
    return not slurm.jobs()


def is_over(slurm: Cluster) -> bool:
    """Return whether nothing waits or runs; what a controller that lost its state holds up goes on.

    It does not know what nodes still run: it drains those that refuse a job for that, and holds the job. Of jobs of a
    second whose end it missed it believes for minutes that they run.
    """
    lines = [line.split("|") for line in slurm.run("squeue", "-h", "-o", "%i|%T|%r|%M").splitlines()]
    for job, _, reason, _ in lines:
        if "held" in reason.lower():
            slurm.run("scontrol", "release", job.partition("_[")[0], check=False)
        if reason == "BeginTime":
            slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now", check=False)
    for node in slurm.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N", check=False).split():
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    if any(state == "RUNNING" and elapsed > "0:20" for _, state, _, elapsed in lines):
        slurm.run("scontrol", "reconfigure", check=False)  # the nodes say what they run
    return not lines


def test_launcher_killed_while_sbatch_is_in_flight(launcher: SLURMLauncher, slurm: Cluster, tmp_path: Path) -> None:
    first = launch_elsewhere(tmp_path, path=slow_sbatch(tmp_path))
    until(lambda: (tmp_path / "in_flight").exists(), START_S, "sbatch in flight")
    first.kill()
    first.wait()
    found: list[str] = []
    again = threading.Thread(target=lambda: found.append(launcher.submit_experiment(experiment("once", f"{COUNT} 50"))))
    again.start()
    again.join(3.0)
    (tmp_path / "go").touch()
    again.join(60)
    until(lambda: (tmp_path / "landed").exists(), START_S, "the end of the first sbatch")
    until(lambda: are_ended(slurm), END_S, "the end of all jobs")
    assert history(launcher, "once") == [0]
    assert launcher.get_job_status(found[0]) is JobStatus.COMPLETED
    assert len(list((launcher.output_dir / "once" / "logs").iterdir())) == 1, "one job"


def test_job_that_lands_after_it_was_submitted_again(launcher: SLURMLauncher, slurm: Cluster, tmp_path: Path) -> None:
    # The request of a launcher that died with its machine, which a busy controller takes up later: no lock tells of it.
    lets_go = 'for file in /proc/$$/fd/*; do fd=${file##*/}; if [ "$fd" -gt 2 ]; then eval "exec $fd>&-"; fi; done'
    first = launch_elsewhere(tmp_path, path=slow_sbatch(tmp_path, lets_go))
    until(lambda: (tmp_path / "in_flight").exists(), START_S, "sbatch in flight")
    first.kill()
    first.wait()
    job = launcher.submit_experiment(experiment("once", f"{COUNT} 50"))
    until(lambda: history(launcher, "once") == [0], START_S, "its start")
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "landed").exists(), START_S, "the end of the first sbatch")
    until(lambda: "has run this since" in log(launcher, "once"), START_S, "the second job's word")
    assert launcher.submit_experiment(experiment("once", f"{COUNT} 50")) == job
    wait_for(launcher, job, JobStatus.COMPLETED)
    until(lambda: are_ended(slurm), END_S, "the end of all jobs")
    assert history(launcher, "once") == [0]
    assert launcher.submit_experiment(experiment("once", f"{COUNT} 50")) == job


def test_launcher_killed_before_it_recorded_a_job_that_is_forgotten(
    launcher: SLURMLauncher, slurm: Cluster, tmp_path: Path
) -> None:
    assert launch_elsewhere(tmp_path, "die").wait(60) == -signal.SIGKILL
    assert json.loads(text(launcher, "once", "submission.json"))["job_id"] is None
    until(lambda: (launcher.output_dir / "once" / "exit_code").exists(), END_S, "its end")
    configuration = slurm.folder / "slurm.conf"
    before = configuration.read_text()
    configuration.write_text(before.replace("MinJobAge=300", "MinJobAge=2"))
    slurm.run("scontrol", "reconfigure")
    try:
        listed = ("squeue", "-h", "--states=all", "-o", "%o")
        until(lambda: str(launcher.output_dir) not in slurm.run(*listed), 150, "a job that Slurm has forgotten")
        job = launcher.submit_experiment(experiment("once", f"{COUNT} 50"))
        until(lambda: are_ended(slurm), END_S, "the end of all jobs")
    finally:
        configuration.write_text(before)
        slurm.run("scontrol", "reconfigure")
    assert history(launcher, "once") == [0]
    assert launcher.get_states(["once"])["once"].record.job_id == job
    assert f"job={job}\n" in (launcher.output_dir / "once" / "claim.1").read_text()


@pytest.mark.parametrize("is_older", [False, True], ids=["killed", "killed and restored"])
def test_controller_killed_with_an_array_running(launcher: SLURMLauncher, slurm: Cluster, is_older: bool) -> None:
    experiments = [experiment(f"job-{number:02}", TIMED, additional_args=["--hold"]) for number in range(30)]
    result = launcher.submit_experiment_batch(experiments, max_concurrent_jobs=6)
    array = result.job_ids["job-00"].partition("_")[0]
    script = json.loads(text(launcher, "job-00", "submission.json"))["script"].encode()
    state, saved = slurm.folder / "state", launcher.output_dir.parent / "saved"
    until(lambda: script in (state / "job_state").read_bytes(), START_S, "the array in the controller's saved state")
    shutil.copytree(state, saved)
    slurm.run("scontrol", "release", array)
    until(lambda: len(spans(launcher.output_dir)) >= 12, END_S, "a dozen jobs done")
    slurm.kill_controller()
    time.sleep(3.0)  # jobs end meanwhile
    if is_older:
        shutil.rmtree(state)
        shutil.copytree(saved, state)
    slurm.start_controller()
    until(lambda: is_over(slurm), 240, "the end of all jobs")
    found = spans(launcher.output_dir)
    assert len(found) == len(list(launcher.output_dir.glob("*/span"))) == 30, "each once"
    assert {text(launcher, f"job-{number:02}", "exit_code") for number in range(30)} == {"0"}
    again = [path for path in launcher.output_dir.glob("*/claim.2") if "restart=0\n" in path.read_text()]
    print(f"{len(again)} of 30 were started again, restart 0, and none ran to its end again")
    assert again or not is_older
    assert not launcher.submit_experiment_batch(experiments, max_concurrent_jobs=6).submitted
