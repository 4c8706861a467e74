"""Experiments through a real Slurm of four nodes: every fault that a job can meet, and what the launcher says of it.

``make test-launch`` runs this. The command counts steps (count_steps.py), and in the last test is a training.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.config import ConfigurationManager, ExecutionMode, ExperimentConfig
from model_training_framework.slurm import GitManager, JobStatus, SLURMError, SLURMLauncher
from tests.workflow.cluster import Cluster
from tests.workflow.conftest import ROOT, until

pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]

COUNT = (
    f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('count_steps.py')))} {{experiment_dir}}"
)
START_S, END_S = 30.0, 60.0
EXAMPLES = ROOT / "slurm" / "examples"
STEPS = 400
Launch = Callable[..., SLURMLauncher]


def experiment(
    name: str, command: str, max_preemptions: int = 3, grace_s: float = 20, **slurm: Any
) -> ExperimentConfig:
    """Return an experiment that asks for little."""
    return ExperimentConfig.from_dict(
        {
            "experiment_name": name,
            "model": {"name": "none"},
            "training": {"batch_size": 1, "learning_rate": 0.1, "max_steps": 1},
            "data": {"dataset_name": "none"},
            "optimizer": {"name": "none"},
            "preemption": {"grace_period_seconds": grace_s, "max_preemptions": max_preemptions},
            "slurm": {"time_limit": "10", "cpus_per_task": 1, "mem": "500M"} | slurm,
            "command": command,
        }
    )


@pytest.fixture
def slurm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Return the cluster with its commands on PATH; afterwards nothing runs and all nodes are up."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster.environment[name])
    yield cluster
    for job in cluster.jobs():
        cluster.run("scancel", job, check=False)
    until(lambda: not cluster.jobs(), 30, "an empty queue")
    for node in cluster.names():
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    until(lambda: cluster.idle() == cluster.nodes, 60, "all nodes idle")


@pytest.fixture
def launcher(slurm: Cluster, tmp_path: Path) -> SLURMLauncher:
    """Return a launcher with a folder of its own."""
    return SLURMLauncher(output_dir=tmp_path / "experiments", project_root=tmp_path)


def history(launcher: SLURMLauncher, name: str) -> list[int]:
    """Return the steps from which each start of an experiment went on."""
    path = launcher.output_dir / name / "history"
    return [int(line.rpartition(" ")[2]) for line in path.read_text().splitlines()] if path.exists() else []


def text(launcher: SLURMLauncher, name: str, file: str) -> str:
    """Return a file of an experiment's folder without its line end."""
    return (launcher.output_dir / name / file).read_text().strip()


def log(launcher: SLURMLauncher, name: str) -> str:
    """Return what the jobs of an experiment printed."""
    return "".join(path.read_text() for path in sorted((launcher.output_dir / name / "logs").iterdir()))


def wait_for(launcher: SLURMLauncher, job_id: str, status: JobStatus, seconds: float = END_S) -> None:
    """Wait until a job is in a state."""
    until(lambda: launcher.get_job_status(job_id) is status, seconds, f"job {job_id} {status}")


def start_again(launcher: SLURMLauncher, slurm: Cluster, job_id: str, restart: int = 1) -> None:
    """Start a job that is requeued now, for the first time or a later one, without Slurm's pause of two minutes."""

    def is_running_again() -> bool:
        details = launcher.get_job_details(job_id)
        if details["Reason"] == "BeginTime":
            time.sleep(2.0)  # a node refuses credentials of the second in which it ended the job
            slurm.run("scontrol", "update", f"jobid={job_id}", "StartTime=now", check=False)
        if details["Reason"] == "launch_failed_requeued_held":  # what the pause that was skipped is for
            slurm.run("scontrol", "release", job_id, check=False)
        print(f"job {job_id}: {details['JobState']}, {details['Reason']}, {details['Restarts']} restarts")
        return int(details["Restarts"]) >= restart and details["JobState"] in ("RUNNING", "COMPLETED", "FAILED")

    until(is_running_again, END_S, f"job {job_id} running again")


def test_states_and_second_submission(launcher: SLURMLauncher, slurm: Cluster) -> None:
    good = experiment("good", f"{COUNT} 30")
    bad = experiment("bad", "echo oops; exit 3")
    later = experiment("later", f"{COUNT} 1", additional_args=["--begin=now+1hour"])
    result = launcher.submit_experiment_batch([good, bad, later])
    assert not result.failed
    jobs = result.job_ids
    assert launcher.get_job_status(jobs["later"]) is JobStatus.PENDING
    wait_for(launcher, jobs["good"], JobStatus.RUNNING)
    until(lambda: history(launcher, "good") == [0], START_S, "its start")  # no step starts in a suspended job
    slurm.run("scontrol", "suspend", jobs["good"])
    wait_for(launcher, jobs["good"], JobStatus.SUSPENDED)
    again = launcher.submit_experiment_batch([good, later])
    assert not again.submitted, "what waits, runs or is suspended is not submitted again"
    assert again.job_ids == {"good": jobs["good"], "later": jobs["later"]}
    slurm.run("scontrol", "resume", jobs["good"])
    wait_for(launcher, jobs["good"], JobStatus.COMPLETED)
    wait_for(launcher, jobs["bad"], JobStatus.FAILED)
    assert (text(launcher, "bad", "exit_code"), text(launcher, "good", "exit_code")) == ("3", "0")
    assert "oops" in log(launcher, "bad")
    assert launcher.cancel_job(jobs["later"])
    wait_for(launcher, jobs["later"], JobStatus.CANCELLED)
    assert not launcher.cancel_job(jobs["later"])
    assert not launcher.cancel_job("999999")
    assert launcher.get_job_status("999999") is JobStatus.UNKNOWN
    assert [found.experiment_name for found in launcher.submit_experiment_batch([good, bad, later]).submitted] == [
        "bad",
        "later",
    ]
    assert history(launcher, "good") == [0]


@pytest.mark.parametrize("partition", ["low", "ungraceful"])
def test_preempted_job_goes_on_by_itself(launcher: SLURMLauncher, slurm: Cluster, partition: str) -> None:
    on_one_node = ["--nodelist=n1", "--exclusive"]
    job = launcher.submit_experiment(
        experiment("low", f"{COUNT} 200", partition=partition, additional_args=on_one_node)
    )
    until(lambda: history(launcher, "low") == [0], START_S, "the low job's start")
    time.sleep(1.0)
    high = launcher.submit_experiment(experiment("high", "sleep 1", partition="high", additional_args=on_one_node))
    wait_for(launcher, high, JobStatus.COMPLETED)
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED)
    starts = history(launcher, "low")
    assert len(starts) == 2
    assert starts[1] < 60, "it was told at once, not at the end of the grace time"
    assert starts[1] > 5, "it went on from what it had saved"
    assert text(launcher, "low", "preemptions") == "1"
    assert text(launcher, "low", "exit_code") == "0"


def test_gives_up_after_max_preemptions(launcher: SLURMLauncher, slurm: Cluster) -> None:
    found = experiment("again", "echo start; exit 75", max_preemptions=1)
    job = launcher.submit_experiment(found)
    until(lambda: "goes back" in log(launcher, "again"), START_S, "the first requeue")
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.PREEMPTED)
    assert log(launcher, "again").count("start\n") == 2
    assert (text(launcher, "again", "preemptions"), text(launcher, "again", "exit_code")) == ("1", "75")
    assert launcher.submit_experiment(found) != job, "a new submission may be preempted as often again"


def test_time_limit(launcher: SLURMLauncher, slurm: Cluster) -> None:
    saves = experiment("saves", f"{COUNT} 420", time_limit="1")
    ignores = experiment("ignores", "trap '' USR1 TERM; exec sleep 200", time_limit="1")
    both = launcher.submit_experiment(
        experiment(
            "both",
            f"{COUNT}/$SLURM_PROCID 420",
            time_limit="1",
            ntasks_per_node=2,
            setup=["mkdir -p $experiment_dir/{0,1}"],
        )
    )
    jobs = launcher.submit_experiment_batch([saves, ignores]).job_ids
    wait_for(launcher, jobs["ignores"], JobStatus.TIMEOUT, 120)
    for job in (jobs["saves"], both):
        start_again(launcher, slurm, job)
    for job in (jobs["saves"], both):
        wait_for(launcher, job, JobStatus.COMPLETED, 180)  # the rest of its steps, and Slurm's pauses
    assert history(launcher, "saves")[1] > 100
    for rank in ("both/0", "both/1"):
        assert history(launcher, rank)[1] > 100, "srun passes the signal on to every task"
    assert text(launcher, "saves", "preemptions") == "1"


def test_cancelled_from_outside(launcher: SLURMLauncher, slurm: Cluster) -> None:
    job = launcher.submit_experiment(experiment("cancelled", f"{COUNT} 600"))
    until(lambda: history(launcher, "cancelled") == [0], START_S, "its start")
    slurm.run("scancel", job)
    wait_for(launcher, job, JobStatus.CANCELLED)
    assert (launcher.output_dir / "cancelled" / "steps").exists(), "it had time to save"
    assert text(launcher, "cancelled", "final_state") == "CANCELLED", "known also when Slurm has forgotten the job"
    assert "goes back" not in log(launcher, "cancelled")


def test_node_down(launcher: SLURMLauncher, slurm: Cluster) -> None:
    job = launcher.submit_experiment(experiment("moved", f"{COUNT} 60"))
    until(lambda: history(launcher, "moved") == [0], START_S, "its start")
    node = launcher.get_job_details(job)["NodeList"]
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    # Slurm's pause of two minutes is for this: a node that lives on refuses the job while the old one is ending there.
    ends = slurm.folder / f"slurmd-{node}.log"
    until(lambda: f"[{job}.0] done with job" in ends.read_text(), START_S, "the end of the job on the lost node")
    assert "requeued by Slurm" in log(launcher, "moved")
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED)
    assert len(history(launcher, "moved")) == 2
    assert int(text(launcher, "moved", "preemptions")) >= 1, "Slurm may requeue it again until the old one has ended"


def test_node_down_without_requeue_and_held_job(launcher: SLURMLauncher, slurm: Cluster) -> None:
    lost = launcher.submit_experiment(experiment("lost", f"{COUNT} 600", requeue=False))
    held = launcher.submit_experiment(experiment("held", f"{COUNT} 600"))
    until(lambda: history(launcher, "lost") == history(launcher, "held") == [0], START_S, "their starts")
    slurm.run("scontrol", "requeuehold", held)
    wait_for(launcher, held, JobStatus.PENDING)
    node = launcher.get_job_details(lost)["NodeList"]
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(launcher, lost, JobStatus.NODE_FAIL)
    until(lambda: (launcher.output_dir / "lost" / "exit_code").exists(), START_S, "the end of its script")
    assert text(launcher, "lost", "final_state") == "NODE_FAIL"
    again = launcher.submit_experiment_batch(
        [experiment("lost", f"{COUNT} 600", requeue=False), experiment("held", f"{COUNT} 600")], ExecutionMode.DRY_RUN
    )
    assert [found.experiment_name for found in again.submitted] == ["lost"], "a held job is not lost"


def spans(folder: Path) -> list[tuple[float, float]]:
    """Return when each run of a job began and ended, in seconds."""
    return [tuple(map(float, line.split())) for path in folder.glob("*/span") for line in path.read_text().splitlines()]  # type: ignore[misc]


def at_once(found: list[tuple[float, float]]) -> int:
    """Return how many ran at the same time at most."""
    changes = sorted([(start, 1) for start, _ in found] + [(end, -1) for _, end in found])
    running, most = 0, 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


TIMED = "a=$(date +%s.%N); sleep 1; echo $a $(date +%s.%N) >> {experiment_dir}/span"


def test_forty_jobs_and_a_controller_restart(launcher: SLURMLauncher, slurm: Cluster) -> None:
    experiments = [experiment(f"job-{number:02}", TIMED) for number in range(40)]
    result = launcher.submit_experiment_batch(experiments, max_concurrent_jobs=4)
    assert len(result.submitted) == 40
    until(lambda: len(spans(launcher.output_dir)) >= 12, END_S, "a dozen jobs done")
    slurm.stop_controller()
    stopped = time.monotonic()
    hasty = SLURMLauncher(output_dir=launcher.output_dir, patience_s=1.0)
    with pytest.raises(SLURMError, match="no answer in 1 s"):
        hasty.get_job_statuses(list(result.job_ids.values()))
    slurm.start_controller()
    away_s = time.monotonic() - stopped
    again = launcher.submit_experiment_batch(experiments, max_concurrent_jobs=4)
    assert not again.submitted
    assert not again.failed

    def are_done() -> bool:
        return set(launcher.get_job_statuses(list(result.job_ids.values())).values()) == {JobStatus.COMPLETED}

    until(are_done, 120, "all jobs completed")
    found = spans(launcher.output_dir)
    assert len(found) == 40, "each once"
    assert len(list(launcher.output_dir.glob("*/span"))) == 40, "all of them"
    assert 1 < at_once(found) <= 4
    took_s = max(end for _, end in found) - min(start for start, _ in found)
    print(f"40 jobs of 1 s, 4 at once, controller away for {away_s:.0f} s: {took_s:.0f} s")


def test_lanes_of_unlike_jobs(launcher: SLURMLauncher, slurm: Cluster) -> None:
    experiments = [experiment(f"job-{number}", TIMED, cpus_per_task=1 + number % 2) for number in range(6)]
    result = launcher.submit_experiment_batch(experiments, max_concurrent_jobs=2)
    assert len(result.submitted) == 6
    until(lambda: len(spans(launcher.output_dir)) == 6, 60, "all jobs done")
    assert at_once(spans(launcher.output_dir)) == 2


def test_submission_while_the_controller_is_away(launcher: SLURMLauncher, slurm: Cluster) -> None:
    slurm.stop_controller()
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(launcher.submit_experiment(experiment("late", f"{COUNT} 1"))))
    thread.start()
    time.sleep(4.0)
    slurm.start_controller()
    thread.join(60)
    assert found, "submitted once the controller was back"
    wait_for(launcher, found[0], JobStatus.COMPLETED)
    assert history(launcher, "late") == [0]


def test_values_reach_the_job_as_they_are(launcher: SLURMLauncher, slurm: Cluster) -> None:
    odd = 'it\'s $HOME "quoted" `date` # \\ end'
    found = experiment(
        "odd",
        'printf "%s" "$ODD" > {experiment_dir}/value; printf "%s" "$SLURM_JOB_NAME" > {experiment_dir}/name',
        environment={"ODD": odd},
        job_name='a "b" c\'d # e\\f',
        setup=["export SETUP=1"],
    )
    wait_for(launcher, launcher.submit_experiment(found), JobStatus.COMPLETED)
    assert text(launcher, "odd", "value") == odd
    assert text(launcher, "odd", "name").startswith('a "b" c\'d # e\\f-')


def test_editing_the_checkout_does_not_change_a_queued_job(slurm: Cluster, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for words in (
        ["init", "-q", str(checkout)],
        ["-C", str(checkout), "config", "user.email", "a@b"],
        ["-C", str(checkout), "config", "user.name", "a"],
    ):
        subprocess.run(["git", *words], check=True)
    (checkout / "train.sh").write_text("echo before\n")
    git = GitManager(checkout)
    commit = git.commit_changes("Train", add_all=True)
    launcher = SLURMLauncher(output_dir=tmp_path / "experiments", git_manager=git)
    job = launcher.submit_experiment(experiment("queued", "bash train.sh", additional_args=["--begin=now+1hour"]))
    (checkout / "train.sh").write_text("echo after\n")
    assert commit in text(launcher, "queued", "submission.json")
    assert launcher.prune_worktrees() == [], "a waiting job keeps its worktree"
    slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now")
    wait_for(launcher, job, JobStatus.COMPLETED)
    assert "before" in log(launcher, "queued")
    assert "after" not in log(launcher, "queued")
    assert launcher.prune_worktrees() == [tmp_path / "experiments" / ".worktrees" / commit[:12]]
    assert (checkout / "train.sh").read_text() == "echo after\n"


def training(name: str, changes: dict[str, Any] | None = None, **slurm: Any) -> ExperimentConfig:
    """Return the examples' small language model, with dropout, for so many steps, with other values of dotted keys."""
    overrides = {
        "experiment_name": name,
        "model.dropout": 0.1,
        "training.max_steps": STEPS,
        "training.epochs": None,
        "command": f"{shlex.quote(sys.executable)} {shlex.quote(str(EXAMPLES / 'train.py'))} --config {{config}}",
        "slurm": {"time_limit": "10", "cpus_per_task": 1, "mem": "2G"} | slurm,
        "preemption.grace_period_seconds": 20,
        **(changes or {}),
    }
    manager = ConfigurationManager(EXAMPLES)
    return ExperimentConfig.from_dict(
        manager.compose_configs(EXAMPLES / "experiment.yaml", parameter_overrides=overrides)
    )


def losses(launcher: SLURMLauncher, name: str) -> list[float]:
    """Return the training loss of every step so far."""
    path = launcher.output_dir / name / "steps.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["loss"] for row in rows if row["phase"] == "train"]


@pytest.mark.parametrize("partition", ["low", "ungraceful"])
def test_preempted_training_is_the_undisturbed_one(launcher: SLURMLauncher, slurm: Cluster, partition: str) -> None:
    on_one_node = ["--nodelist=n1", "--exclusive"]
    undisturbed = launcher.submit_experiment(training("undisturbed", additional_args=["--nodelist=n2"]))
    job = launcher.submit_experiment(training("preempted", partition=partition, additional_args=on_one_node))
    until(lambda: len(losses(launcher, "preempted")) > 20, 90, "some steps")
    high = launcher.submit_experiment(experiment("high", "sleep 1", partition="high", additional_args=on_one_node))
    wait_for(launcher, high, JobStatus.COMPLETED)
    start_again(launcher, slurm, job)
    for found in (job, undisturbed):
        wait_for(launcher, found, JobStatus.COMPLETED, 120)
    assert text(launcher, "preempted", "preemptions") == "1", log(launcher, "preempted")
    assert len(losses(launcher, "preempted")) == STEPS
    assert losses(launcher, "preempted") == losses(launcher, "undisturbed")
