"""Errors of submission, of Slurm and of git. Each message is one line with the program's own words."""

from __future__ import annotations


class SLURMError(RuntimeError):
    """Slurm did not answer, or answered what cannot be understood. It never means that a job is gone."""


class JobSubmissionError(SLURMError):
    """An experiment that was not submitted; the message says why and what to change."""


class GitOperationError(RuntimeError):
    """A git operation that failed, with git's own words; the working tree is as it was."""
