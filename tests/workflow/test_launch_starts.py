"""Starts of an experiment through a real Slurm: torchrun and mpirun, a rank that hangs, one run over two starts.

``make test-launch`` runs this.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.__main__ import main
from model_training_framework.slurm import JobStatus, SLURMLauncher
from model_training_framework.slurm.results import Outlook
from tests.workflow.cluster import Cluster
from tests.workflow.conftest import until
from tests.workflow.test_launch_slurm import (
    COUNT,
    END_S,
    EXAMPLES,
    START_S,
    TIMED,
    at_once,
    experiment,
    history,
    launcher,
    log,
    losses,
    slurm,
    spans,
    start_again,
    text,
    training,
    wait_for,
)
from tests.workflow.test_launch_training import TRAINING_S, TWO_RANKS

__all__ = ["launcher", "slurm"]  # fixtures
pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]

PYTHON = shlex.quote(sys.executable)
STEPS = 120


def test_torchrun_on_two_nodes_is_preempted_and_told_of_its_end(launcher: SLURMLauncher, slurm: Cluster) -> None:
    place = 'echo "$SLURM_RESTART_COUNT/$RANK/$LOCAL_RANK/$WORLD_SIZE/$SLURMD_NODENAME" >> {experiment_dir}/places'
    changes = {
        "training.max_steps": STEPS,
        "command": f"{place}; {PYTHON} {shlex.quote(str(EXAMPLES / 'train.py'))} --config {{config}}",
    }
    on_two_nodes = {
        "launcher": "torchrun",
        "nodes": 2,
        "gres": "gpu:2",
        "additional_args": ["--nodelist=n1,n2", "--exclusive"],
        "environment": TWO_RANKS["environment"],
    }
    job = launcher.submit_experiment(training("torchrun", changes, partition="low", **on_two_nodes))
    until(lambda: len(losses(launcher, "torchrun")) > 10, TRAINING_S, "its first steps")
    on_one_of_them = ["--nodelist=n1", "--exclusive"]
    high = launcher.submit_experiment(experiment("high", "sleep 1", partition="high", additional_args=on_one_of_them))
    wait_for(launcher, high, JobStatus.COMPLETED)
    preempted = losses(launcher, "torchrun")
    assert len(preempted) < STEPS, "it was preempted in its middle"

    start_again(launcher, slurm, job)
    until(lambda: len(losses(launcher, "torchrun")) > len(preempted) + 10, TRAINING_S, "steps of its second start")
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as before the end of a time limit
    start_again(launcher, slurm, job, restart=2)
    told = losses(launcher, "torchrun")
    assert len(told) < STEPS, "it was told in its middle"
    assert told[: len(preempted)] == preempted, "it went on from what it had saved"

    wait_for(launcher, job, JobStatus.COMPLETED, TRAINING_S)
    assert text(launcher, "torchrun", "preemptions") == "2", log(launcher, "torchrun")
    found = losses(launcher, "torchrun")
    assert (len(found), found[: len(told)]) == (STEPS, told)
    places = text(launcher, "torchrun", "places").splitlines()
    ranks = [place.split("/")[1:4] for place in places]
    assert sorted(ranks) == sorted(3 * [[str(rank), str(rank % 2), "4"] for rank in range(4)])
    for restart in ("", "1", "2"):
        nodes = [place.split("/")[4] for place in places if place.startswith(f"{restart}/")]
        assert sorted(nodes) == ["n1", "n1", "n2", "n2"]


TORCHRUN = {"launcher": "torchrun", "gres": "gpu:2", "ntasks_per_node": 1}
LATE = "rank 1 is in TRAIN_BATCH_FORWARD at hang_once.py:"


@pytest.mark.parametrize(
    ("how", "reason", "starter"),
    [("sleep", LATE, {}), ("sleep", LATE, TORCHRUN), ("stop", "rank 1 no longer runs, last in ", {})],
    ids=["srun", "torchrun", "stopped"],
)
def test_a_job_of_which_a_rank_hangs_goes_on_by_itself(
    launcher: SLURMLauncher, slurm: Cluster, how: str, reason: str, starter: dict[str, Any]
) -> None:
    script = shlex.quote(str(Path(__file__).with_name("hang_once.py")))
    changes = {
        "training.max_steps": STEPS,
        "preemption.rank_timeout_seconds": 10,
        "command": f"{PYTHON} {script} {how} 25 --config {{config}}",
    }
    job = launcher.submit_experiment(training("hangs", changes, **TWO_RANKS | starter))
    until(lambda: (launcher.output_dir / "hangs" / "hang" / "rank-00000.txt").exists(), TRAINING_S, "a rank's stack")
    until(lambda: "goes back to the queue" in log(launcher, "hangs"), END_S, "the requeue")
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED, TRAINING_S)
    said = log(launcher, "hangs")
    assert f"no rank went on for 10 s (rank_timeout_seconds): {reason}" in said
    assert how == "stop" or "hanging_step" in text(launcher, "hangs", "hang/rank-00001.txt")
    assert text(launcher, "hangs", "preemptions") == "1", said
    assert len(losses(launcher, "hangs")) == STEPS


def test_a_run_that_its_partition_is_too_short_for_goes_on_in_a_second_start(slurm: Cluster, tmp_path: Path) -> None:
    # Slurm may send the signal half a minute early (PERIODIC_TIMEOUT of slurmctld): 70 to 100 s after the start.
    launcher = SLURMLauncher(
        output_dir=tmp_path / "experiments", project_root=tmp_path, outlook=lambda _: Outlook(time_limit_s=130)
    )
    found = experiment("long", f"{COUNT} 1020", max_preemptions=0, time_limit="auto", partition="short")
    job = launcher.submit_experiment(found)
    assert launcher.get_job_details(job)["TimeLimit"] == "00:02:00"
    until(lambda: "goes back to the queue" in log(launcher, "long"), 150, "the end of its first start")
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED, 2 * END_S)
    first, second = history(launcher, "long")
    assert first == 0
    assert 300 < second < 1020, "it went on from what it had saved"
    assert text(launcher, "long", "preemptions") == "1"


def test_status_says_why_a_job_waits(
    launcher: SLURMLauncher, slurm: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = {
        "held": experiment("held", "true", additional_args=["--hold"]),
        "long": experiment("long", "true", partition="short"),
    }
    launcher.submit_experiment_batch(list(waits.values()))

    def reasons() -> dict[str, str]:
        capsys.readouterr()
        assert main(["status", "--json", "--output", str(launcher.output_dir)]) == 0
        return {row["name"]: row["reason"] for row in json.loads(capsys.readouterr().out)}

    until(lambda: reasons() == {"held": "JobHeldUser", "long": "PartitionTimeLimit"}, START_S, "the reasons")


def test_a_limit_of_concurrent_jobs_holds_over_batches(launcher: SLURMLauncher, slurm: Cluster) -> None:
    batches = [[experiment(f"job-{batch}-{number}", TIMED) for number in range(4)] for batch in range(3)]
    for batch in batches:
        assert len(launcher.submit_experiment_batch(batch, max_concurrent_jobs=2).submitted) == 4
    until(lambda: len(spans(launcher.output_dir)) == 12, 2 * END_S, "the end of all jobs")
    assert at_once(spans(launcher.output_dir)) == 2


def test_mpirun_starts_ranks_on_two_nodes_and_tells_them_to_save(launcher: SLURMLauncher, slurm: Cluster) -> None:
    own = "{experiment_dir}/$RANK"
    count = f"mkdir -p {own}; echo $WORLD_SIZE $SLURMD_NODENAME > {own}/place; {COUNT}/$RANK 100"
    found = experiment("mpi", count, launcher="mpirun", nodes=2, environment=TWO_RANKS["environment"])
    job = launcher.submit_experiment(found)
    until(lambda: history(launcher, "mpi/0") == history(launcher, "mpi/1") == [0], START_S, "the start of both ranks")
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED)
    assert {text(launcher, f"mpi/{rank}", "place") for rank in range(2)} == {"2 n1", "2 n2"}
    assert all(0 < history(launcher, f"mpi/{rank}")[1] < 100 for rank in range(2)), "they went on from their counts"
