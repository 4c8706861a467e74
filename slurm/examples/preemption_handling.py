"""Preemption: a training that is told to leave saves, ends with status 75, and goes on bit by bit.

    python slurm/examples/preemption_handling.py FOLDER

The same training runs twice: undisturbed, and told to leave in its middle as Slurm tells it (SIGUSR1).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from model_training_framework.config import ConfigurationManager
from model_training_framework.trainer import EXIT_RESUMABLE

HERE = Path(__file__).resolve().parent


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start or go on with the training of a folder."""
    command = [sys.executable, str(HERE / "train.py"), "--config", str(folder / "config.yaml")]
    return subprocess.Popen(command)


def losses(folder: Path) -> list[float]:
    """Return the training loss of every step so far."""
    path = folder / "steps.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row["loss"] for row in rows if row["phase"] == "train"]


def main(folder: Path) -> None:
    """Compare the losses of both."""
    manager = ConfigurationManager(HERE)
    for name in ("undisturbed", "preempted"):
        overrides = {"experiment_name": name, "model.dropout": 0.1, "training.max_steps": 60}
        config = manager.compose_configs(HERE / "experiment.yaml", parameter_overrides=overrides)
        manager.save_config(config, folder / name / "config.yaml")

    assert start(folder / "undisturbed").wait() == 0

    preempted = folder / "preempted"
    process = start(preempted)
    while len(losses(preempted)) < 20 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    status = process.wait()
    print(f"preempted after {len(losses(preempted))} steps with status {status}")
    while status == EXIT_RESUMABLE:
        status = start(preempted).wait()
    assert status == 0, f"the resumed training ended with {status}"

    is_same = losses(preempted) == losses(folder / "undisturbed")
    print(f"{len(losses(preempted))} losses, {'all' if is_same else 'not all'} equal to those of the undisturbed run")
    assert is_same


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "preemption_handling"))
