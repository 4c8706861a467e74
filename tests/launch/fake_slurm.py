"""Stand-ins of Slurm's commands that answer recorded text and write down how they were called."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.config import ExperimentConfig

COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel")
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
ACCOUNTING_OFF = "Slurm accounting storage is disabled"
NO_SUCH_JOB = "slurm_load_jobs error: Invalid job id specified"
SCRIPT = """\
#!/bin/sh
cd {folder} || exit 1
printf '%s\\n' "$*" >> {name}.calls
answer={name}.$(wc -l < {name}.calls | tr -d ' ')
[ -e "$answer" ] || answer={name}.always
[ -e "$answer.error" ] && cat "$answer.error" >&2
[ -e "$answer" ] && cat "$answer"
[ -e "$answer.status" ] && exit "$(cat "$answer.status")"
exit 0
"""


@dataclass
class FakeSlurm:
    """Commands in a folder that is first on PATH."""

    folder: Path

    def answer(self, name: str, output: str = "", error: str = "", status: int = 0, call: int | None = None) -> None:
        """Set what a command answers, always or at its n-th call (1, 2 …)."""
        path = self.folder / f"{name}.{call or 'always'}"
        path.write_text(output)
        path.with_name(f"{path.name}.error").write_text(error + "\n" if error else "")
        path.with_name(f"{path.name}.status").write_text(f"{status}\n")

    def calls(self, name: str) -> list[str]:
        """Return the arguments of every call of a command."""
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Put the stand-ins on PATH: an empty queue, no accounting, jobs that count from 100."""
    folder.mkdir()
    for name in COMMANDS:
        (folder / name).write_text(SCRIPT.format(folder=folder, name=name))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    found = FakeSlurm(folder)
    found.answer("sacct", error=ACCOUNTING_OFF, status=1)
    found.answer("scontrol", "MaxArraySize            = 1001\n")
    for number in range(1, 20):
        found.answer("sbatch", f"{99 + number}\n", call=number)
    return found


def experiment(name: str = "one", command: str = "true", **sections: Any) -> ExperimentConfig:
    """Return a small experiment; keyword arguments replace its sections."""
    return ExperimentConfig.from_dict(
        {
            "experiment_name": name,
            "model": {"name": "none"},
            "training": {"batch_size": 1, "learning_rate": 0.1, "max_steps": 1},
            "data": {"dataset_name": "none"},
            "optimizer": {"name": "none"},
            "command": command,
        }
        | sections
    )
