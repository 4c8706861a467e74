"""Files of an experiment's folder: its submission, and the end of its command.

<output_dir>/<experiment_name>/
    config.yaml       the whole configuration
    job.sbatch        what the job runs
    submission.json   job, commit, time, prediction
    logs/             output of its jobs
    exit_code         written by the job when its command has ended for good
    final_state       how it ended, in Slurm's word: tells a time limit from a cancelled job without accounting
    preemptions       how often the job was requeued
    claim.1, …        who ran it, a file a start, made by the job itself; see claims.py
<output_dir>/.submissions/<name>/   what was given to sbatch, and a link to the folder of every task
<output_dir>/.submissions/job-<id>  link to the submission of a job
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.config.files import read_file
from model_training_framework.slurm.errors import JobSubmissionError, SLURMError
from model_training_framework.slurm.states import JobStatus, parse_state, status_of_exit
from predictor.core.base.files import write_whole

SUBMISSIONS = ".submissions"
RECORD = "submission.json"
# Changing these does not make another experiment: the same training in another place, or said in other words.
ABOUT_THE_JOB = frozenset(
    {
        "slurm", "preemption", "logging", "performance", "prediction", "description", "tags", "created_by",
        "created_at", "version",
    }
)  # fmt: skip


class SubmissionRecord(BaseModel):
    """submission.json: what is known about an experiment's newest submission."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job_id: str | None = Field(description="of Slurm, 12_3 for a task of an array; null while it is being submitted")
    array_index: int | None = Field(default=None, description="its task in the array")
    job_name: str | None = Field(default=None, description="of the job; no other submission has it, lanes aside")
    submission: str = Field(description="name of the folder in .submissions")
    script: str = Field(description="path that was given to sbatch")
    submitted_at: str = Field(description="UTC, ISO 8601")
    configuration: str = Field(description="SHA-256 of the configuration, without what concerns the job only")
    commit: str | None = Field(default=None, description="that the job runs; null where it runs a folder as it is")
    worktree: str | None = Field(default=None, description="folder that the job starts in")
    predicted: dict[str, Any] | None = Field(default=None, description="what was predicted beforehand")


def _science(experiment: ExperimentConfig) -> dict[str, Any]:
    return {key: value for key, value in experiment.to_dict().items() if key not in ABOUT_THE_JOB}


def fingerprint(experiment: ExperimentConfig) -> str:
    """Return the SHA-256 of what makes an experiment itself: all keys but those that concern the job only."""
    return hashlib.sha256(json.dumps(_science(experiment), sort_keys=True).encode()).hexdigest()


def differing_keys(experiment: ExperimentConfig, folder: Path) -> list[str]:
    """Return the dotted keys in which an experiment differs from the configuration in its folder."""
    try:
        stored = read_file(folder / "config.yaml")
    except (OSError, ConfigurationError):
        return []
    ours, theirs = dict(_flat(_science(experiment))), dict(_flat(stored))
    keys = {key for key in ours.keys() | theirs.keys() if key.partition(".")[0] not in ABOUT_THE_JOB}
    return sorted(key for key in keys if ours.get(key) != theirs.get(key))


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_record(folder: Path) -> SubmissionRecord | None:
    """Return what is recorded of an experiment's submission; None where it was never submitted.

    Raises:
        SLURMError: submission.json is damaged. Taking it for absent could start a job twice.
    """
    path = folder / RECORD
    try:
        return SubmissionRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        said = " ".join(str(error).split())
        raise SLURMError(
            f"{path} cannot be read: {said}; see squeue whether its job runs, then remove the file"
        ) from error


def write_record(folder: Path, record: SubmissionRecord) -> None:
    """Put an experiment's submission.json in place.

    Raises:
        JobSubmissionError: it cannot be written.
    """
    put(folder / RECORD, record.model_dump_json(indent=2) + "\n")


def put(path: Path, text: str) -> None:
    """Write a file whole, in a folder that is made where needed.

    Raises:
        JobSubmissionError: it cannot be written: a full disk, no permission.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise JobSubmissionError(f"{path} cannot be written: {error.strerror or error}") from error


def exit_status(folder: Path) -> int | None:
    """Return how an experiment's command ended for good; None where it has not."""
    try:
        return int((folder / "exit_code").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def recorded_end(folder: Path) -> JobStatus | None:
    """Return the state in which an experiment's job ended for good, by its own files; None where it has not."""
    status = exit_status(folder)
    if status is None:
        return None
    try:
        return parse_state((folder / "final_state").read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, SLURMError):
        return status_of_exit(status)


def preemptions(folder: Path) -> int:
    """Return how often an experiment's job was requeued."""
    try:
        return int((folder / "preemptions").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def folder_of_job(output_dir: Path, job_id: str) -> Path | None:
    """Return the folder of the experiment that was submitted as a job; None for a job of somebody else.

    Args:
        output_dir: of the launcher.
        job_id: ``12``, or ``12_3`` for a task of an array.
    """
    base, _, index = job_id.partition("_")
    link = output_dir / SUBMISSIONS / f"job-{base}" / (index or "0")
    return link.resolve() if link.exists() else None


def job_of_submission(output_dir: Path, submission: str) -> str | None:
    """Return the job that a submission is known by; None where its launcher did not come to write it down."""
    for link in (output_dir / SUBMISSIONS).glob("job-*"):
        if link.is_symlink() and link.readlink().name == submission:
            return link.name.removeprefix("job-")
    return None


def tasks_of_job(output_dir: Path, job_id: str) -> list[str]:
    """Return the tasks of an array; nothing for a job that is none, or of somebody else."""
    folder = output_dir / SUBMISSIONS / f"job-{job_id}"
    indices = sorted(int(link.name) for link in folder.glob("[0-9]*") if link.is_symlink())
    return [f"{job_id}_{index}" for index in indices] if (folder / "is_array").exists() else []
