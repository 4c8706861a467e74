"""Training through a real Slurm: preempted in its middle, it goes on by itself and learns what it would have learnt.

``make test-launch`` runs this.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.config import ConfigurationManager, ExecutionMode, ExperimentConfig
from model_training_framework.slurm import JobStatus, SLURMLauncher
from tests.workflow.cluster import Cluster
from tests.workflow.conftest import ROOT, until
from tests.workflow.test_launch_slurm import (
    experiment,
    launcher,
    log,
    slurm,
    start_again,
    text,
    wait_for,
)

__all__ = ["launcher", "slurm"]  # fixtures
pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("default")]

EXAMPLES = ROOT / "slurm" / "examples"
PATHS = [str(ROOT / folder) for folder in (".", "slurm", "training", "profiling")]
TRAIN = f"env PYTHONPATH={':'.join(PATHS)} {shlex.quote(sys.executable)} {EXAMPLES / 'train.py'} --config {{config}}"
STEPS, PREEMPTED_AFTER = 120, 25
TRAINING_S = 240.0


def training(name: str, **slurm_options: Any) -> ExperimentConfig:
    """Return a training with dropout and shuffling, which long batches make last some seconds."""
    overrides = {
        "experiment_name": name,
        "command": TRAIN,
        "model.dropout": 0.1,
        "training.max_steps": STEPS,
        "training.batch_size": 64,
        "checkpoint.save_every_n_steps": 50,
        "preemption.grace_period_seconds": 20,
        "slurm": {"time_limit": "10", "cpus_per_task": 1, "mem": "2G"} | slurm_options,
    }
    return ExperimentConfig.from_dict(
        ConfigurationManager(EXAMPLES).compose_configs("experiment", parameter_overrides=overrides)
    )


def losses(folder: Path) -> list[float]:
    """Return the training loss of every step so far."""
    path = folder / "steps.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["loss"] for row in rows if row["phase"] == "train"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_preempted_training_goes_on_bit_by_bit(
    launcher: SLURMLauncher,  # noqa: F811
    slurm: Cluster,  # noqa: F811
    ranks: int,
) -> None:
    on_one_node = {"additional_args": ["--nodelist=n1", "--exclusive"], "ntasks_per_node": ranks}
    undisturbed = launcher.submit_experiment(training("undisturbed", partition="low", **on_one_node))
    wait_for(launcher, undisturbed, JobStatus.COMPLETED, TRAINING_S)

    folder = launcher.output_dir / "preempted"
    job = launcher.submit_experiment(training("preempted", partition="low", **on_one_node))
    until(lambda: len(losses(folder)) > PREEMPTED_AFTER, TRAINING_S, "its first steps")
    high = launcher.submit_experiment(
        experiment("high", "sleep 1", partition="high", additional_args=["--nodelist=n1", "--exclusive"])
    )
    wait_for(launcher, high, JobStatus.COMPLETED)
    before = len(losses(folder))
    assert before < STEPS, "it was preempted in its middle"
    start_again(launcher, slurm, job)
    wait_for(launcher, job, JobStatus.COMPLETED, TRAINING_S)
    assert text(launcher, "preempted", "preemptions") == "1", log(launcher, "preempted")
    assert losses(folder) == losses(launcher.output_dir / "undisturbed")
    assert len(losses(folder)) == STEPS


def test_undisturbed_training_is_that_of_this_machine(launcher: SLURMLauncher) -> None:  # noqa: F811
    job = launcher.submit_experiment(training("through-slurm"))
    launcher.submit_experiment(training("here"), ExecutionMode.LOCAL)
    wait_for(launcher, job, JobStatus.COMPLETED, TRAINING_S)
    assert losses(launcher.output_dir / "through-slurm") == losses(launcher.output_dir / "here")
