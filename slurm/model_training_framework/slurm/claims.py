"""Claims of jobs on an experiment, so that none runs beside another.

claim.1, claim.2 … in the experiment's folder; the newest holds until it says when it ended. claim.sh is the same for
jobs of Slurm, and says more.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from model_training_framework.slurm.errors import JobSubmissionError
from predictor.core.base.files import write_whole


@dataclass(frozen=True, slots=True)
class Claim:
    """A start of an experiment.

    Attributes:
        path: of its file.
        values: ``job`` (12, 12_3, local-…), ``host``, ``pid``, ``ticks`` (when that process began, since boot),
            ``start``, ``restart``, and once it has ended ``end``.
    """

    path: Path
    values: Mapping[str, str]

    @property
    def number(self) -> int:
        """Return which start of the experiment it is."""
        return int(self.path.suffix[1:])

    @property
    def job_id(self) -> str:
        """Return the job that made it."""
        return self.values.get("job", "")

    @property
    def stands(self) -> bool:
        """Return whether it has not said that it ended; its job may be gone all the same."""
        return "end" not in self.values

    def end(self) -> None:
        """Say in it that it has ended.

        Raises:
            JobSubmissionError: it cannot be written.
        """
        _put(self.path, {**self.values, "end": _now()})

    def hand_over(self, pid: int) -> None:
        """Say in it which process it stands for; errors as above."""
        _put(self.path, {**self.values, "pid": str(pid), "ticks": _ticks(pid)})


def claim_script(folder: Path) -> str:
    """Return shell code that makes the claim of a job, or ends it where another one holds or all is done."""
    text = resources.files(__package__).joinpath("claim.sh").read_text(encoding="utf-8")
    return text.replace("{{experiment_dir}}", shlex.quote(str(folder))).rstrip("\n")


def newest_claim(folder: Path) -> Claim | None:
    """Return the newest claim of an experiment; None where it was never started."""
    found, number = None, 1
    while (path := folder / f"claim.{number}").exists():
        found, number = path, number + 1
    if found is None:
        return None
    lines = found.read_text(encoding="utf-8").splitlines()
    return Claim(found, {key: value for key, _, value in (line.partition("=") for line in lines)})


def take_claim(folder: Path, job_id: str, restarts: int) -> Claim | None:
    """Make the next claim of an experiment for a run on this machine; None where another job holds it.

    Raises:
        JobSubmissionError: it cannot be written.
    """
    before = newest_claim(folder)
    if before is not None and before.stands:
        return None
    values = {"job": job_id, "host": os.uname().nodename, "pid": str(os.getpid()), "ticks": _ticks(os.getpid())}
    claim = Claim(
        folder / f"claim.{before.number + 1 if before else 1}", values | {"start": _now(), "restart": str(restarts)}
    )
    own = folder / f".claim.{job_id}.{os.getpid()}.{socket.gethostname()}"
    _put(own, claim.values)
    try:
        os.link(own, claim.path)
    except FileExistsError:
        return claim if own.samefile(claim.path) else None
    except OSError as error:
        raise JobSubmissionError(f"{claim.path} cannot be made by link(): {error.strerror or error}") from error
    finally:
        own.unlink(missing_ok=True)
    return claim


def _put(path: Path, values: Mapping[str, str]) -> None:
    try:
        write_whole(path, "".join(f"{key}={value}\n" for key, value in values.items()))
    except OSError as error:
        raise JobSubmissionError(f"{path} cannot be written: {error.strerror or error}") from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ticks(pid: int) -> str:
    """Return when a process began; nothing where the system has no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""
