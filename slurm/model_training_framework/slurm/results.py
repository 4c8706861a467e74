"""Outcomes of submitted experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_training_framework.config import ExecutionMode
from model_training_framework.slurm.states import JobStatus


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of an experiment before it is submitted.

    Attributes:
        time_limit_s: upper bound of its predicted duration, in seconds, for ``time_limit: auto``; None where unknown.
        why_no_limit: why it is unknown.
        refusal: why it cannot run on the cluster (its memory does not fit); None where nothing speaks against it.
        predicted: what was predicted, as JSON holds it, for submission.json.
    """

    time_limit_s: float | None = None
    why_no_limit: str = "nothing was predicted; give prediction.system"
    refusal: str | None = None
    predicted: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """An experiment that Slurm has, that ran here, or (DRY_RUN) that would be submitted.

    Attributes:
        experiment_name: its name.
        job_id: ``12``, ``12_3`` for a task of an array, ``local-…`` here; None where nothing was submitted (DRY_RUN).
        folder: of the experiment.
        is_new: this call submitted it, or would; otherwise an earlier one did, and it is in the queue, runs or is done.
        status: state of the job if it is not new.
        script: job script.
        sbatch: command line that submits it.
    """

    experiment_name: str
    job_id: str | None
    folder: Path
    is_new: bool = True
    status: JobStatus | None = None
    script: str = ""
    sbatch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedSubmission:
    """An experiment that was not submitted, or (LOCAL) whose command failed.

    Attributes:
        experiment_name: its name.
        reason: why, in a line.
        job_id: of its run (LOCAL).
    """

    experiment_name: str
    reason: str
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class BatchSubmissionResult:
    """What became of a batch.

    Attributes:
        mode: how it was executed.
        successful: experiments that Slurm has or that are done, in the order of the batch.
        failed: experiments that were not submitted, and why.
    """

    mode: ExecutionMode
    successful: tuple[Submission, ...] = field(default_factory=tuple)
    failed: tuple[FailedSubmission, ...] = field(default_factory=tuple)

    @property
    def submitted(self) -> tuple[Submission, ...]:
        """Return what this call submitted, or would."""
        return tuple(submission for submission in self.successful if submission.is_new)

    @property
    def job_ids(self) -> dict[str, str]:
        """Return the job of every experiment that has one."""
        return {
            submission.experiment_name: submission.job_id
            for submission in self.successful
            if submission.job_id is not None
        }

    def __str__(self) -> str:
        """Return how many were submitted, were there already, and failed with which reasons."""
        new = len(self.submitted)
        lines = [
            f"{new} submitted, {len(self.successful) - new} there already, {len(self.failed)} failed ({self.mode})"
        ]
        return "\n".join([*lines, *(f"{failure.experiment_name}: {failure.reason}" for failure in self.failed)])
