"""Errors of the trainer. Each message is one line: what failed, why, and the way out."""

from __future__ import annotations


class TrainerError(RuntimeError):
    """Training cannot begin or go on as asked."""


class RunRefusedError(TrainerError, SystemExit):
    """A run that may not begin; where nobody catches it, Python prints its line alone and ends with status 1."""

    def __init__(self, message: str) -> None:
        """Say why."""
        super().__init__(message)
        self.code = message


class CheckpointError(TrainerError):
    """A checkpoint that could not be written or read."""


class CheckpointTimeoutError(CheckpointError):
    """A rank that did not finish its part of a checkpoint in time."""


class PreemptionTimeoutError(TrainerError):
    """A grace period that ended before the emergency checkpoint was complete."""
