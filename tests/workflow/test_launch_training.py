"""Training of two ranks through a real Slurm: preempted in its middle, it goes on by itself, bit by bit.

``make test-launch`` runs this.
"""

from __future__ import annotations

from typing import Any

import pytest

from model_training_framework.config import ExecutionMode
from model_training_framework.slurm import JobStatus, SLURMLauncher
from tests.workflow.cluster import Cluster
from tests.workflow.conftest import until
from tests.workflow.test_launch_slurm import (
    STEPS,
    experiment,
    launcher,
    log,
    losses,
    slurm,
    start_again,
    text,
    training,
    wait_for,
)

__all__ = ["launcher", "slurm"]  # fixtures
pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]

ON_ONE_NODE = ["--nodelist=n1", "--exclusive"]
TRAINING_S = 200.0
# The names of these nodes lead nowhere.
TWO_RANKS: dict[str, Any] = {
    "additional_args": ON_ONE_NODE,
    "ntasks_per_node": 2,
    "environment": {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"},
}


def test_two_ranks_preempted_go_on_bit_by_bit(launcher: SLURMLauncher, slurm: Cluster) -> None:
    undisturbed = training("undisturbed", **TWO_RANKS)
    assert launcher.submit_experiment(undisturbed, ExecutionMode.LOCAL).startswith("local-")
    assert len(losses(launcher, "undisturbed")) == STEPS

    job = launcher.submit_experiment(training("preempted", partition="low", **TWO_RANKS))
    until(lambda: len(losses(launcher, "preempted")) > 20, TRAINING_S, "its first steps")
    high = launcher.submit_experiment(experiment("high", "sleep 1", partition="high", additional_args=ON_ONE_NODE))
    wait_for(launcher, high, JobStatus.COMPLETED)
    assert len(losses(launcher, "preempted")) < STEPS, "it was preempted in its middle"
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED, TRAINING_S)
    assert text(launcher, "preempted", "preemptions") == "1", log(launcher, "preempted")
    assert losses(launcher, "preempted") == losses(launcher, "undisturbed")
