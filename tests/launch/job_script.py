"""The shipped job script in a folder of its own, beside stand-ins of srun and scontrol."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_training_framework.slurm import JobStatus
from model_training_framework.slurm.job_values import Place, values
from model_training_framework.slurm.records import recorded_end
from model_training_framework.slurm.template import read_template, render
from tests.launch.fake_slurm import experiment

# Without a controller to ask, each stand-in reads what it would say from a file.
SRUN = """\
#!/bin/bash
echo start >> srun.calls
if [ -e srun.broken ]; then rm srun.broken; echo "srun: Unable to confirm allocation" >&2; exit 1; fi
while [[ $1 == -* ]]; do shift; done
if [ -e srun.loses_node ]; then "$@" & sleep 0.3; exit 0; fi
exec "$@"
"""
SCONTROL = """\
#!/bin/bash
echo "$*" >> scontrol.calls
case $1 in
show)
    if [ -e away ] && [ $(wc -l < scontrol.calls) -le "$(cat away)" ]; then
        echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
        exit 1
    elif [ -e forgotten ] && [ "$4" = 4 ]; then
        echo "slurm_load_jobs error: Invalid job id specified" >&2
        exit 1
    fi
    cat controller
    ;;
requeue) [ ! -e no_requeue ] || exit 1; echo "JobId=$2 JobState=COMPLETING Reason=None Restarts=9" > controller ;;
esac
"""


@dataclass
class Script:
    """An experiment's job script in a folder of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir()
        # Once: a stand-in that is written again is empty for a moment, and to whatever starts it then, a success.
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)

    @property
    def experiment_dir(self) -> Path:
        return self.folder / "out" / "one"

    def says(self, state: str = "RUNNING", reason: str = "None", restarts: int = 0) -> None:
        """Set what the controller says of the job."""
        line = f"JobId=7 ArrayJobId=5 JobState={state} Reason={reason} Requeue=1 Restarts={restarts}\n"
        (self.folder / "controller").write_text(line)

    def start(self, command: str, restarts: int = 0, **sections: Any) -> subprocess.Popen[str]:
        """Start the script as slurmd does."""
        if not (self.folder / "controller").exists():
            self.says(restarts=restarts)
        self.experiment_dir.mkdir(parents=True, exist_ok=True)
        found = experiment("one", command, **sections)
        place = Place(self.experiment_dir, self.folder)
        # Another file each time: a shell goes on reading its script.
        script = self.folder / f"job.{len(list(self.folder.glob('job.*')))}.sbatch"
        script.write_text(render(*read_template(None), values(found, place, None, None)))
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_ARRAY_JOB_ID": "5",
            "SLURM_ARRAY_TASK_ID": "2",
        }
        if restarts:
            environment["SLURM_RESTART_COUNT"] = str(restarts)
        return subprocess.Popen(
            ["bash", str(script)],
            cwd=self.folder,
            env=environment | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, restarts: int = 0, **sections: Any) -> int:
        """Run the script to its end."""
        process = self.start(command, restarts, **sections)
        process.communicate(timeout=30)
        return process.returncode

    def signalled(self, command: str, number: signal.Signals, **sections: Any) -> int:
        """Run the script, and signal its shell alone once the command has begun."""
        process = self.start(f"touch begun; {command}", **sections)
        deadline = time.monotonic() + 20
        while not (self.folder / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=30)
        return process.returncode

    @property
    def end(self) -> JobStatus | None:
        return recorded_end(self.experiment_dir)

    def calls(self, name: str) -> str:
        path = self.folder / f"{name}.calls"
        return path.read_text() if path.exists() else ""


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
