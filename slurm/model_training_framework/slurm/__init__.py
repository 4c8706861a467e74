"""Submit experiments to Slurm and follow them; run them from a recorded commit."""

from model_training_framework.slurm.commands import PATIENCE_S
from model_training_framework.slurm.errors import GitOperationError, JobSubmissionError, SLURMError
from model_training_framework.slurm.git_manager import GitManager
from model_training_framework.slurm.launcher import SLURMLauncher
from model_training_framework.slurm.results import BatchSubmissionResult, FailedSubmission, Outlook, Submission
from model_training_framework.slurm.states import JobStatus

__all__ = [
    "PATIENCE_S",
    "BatchSubmissionResult",
    "FailedSubmission",
    "GitManager",
    "GitOperationError",
    "JobStatus",
    "JobSubmissionError",
    "Outlook",
    "SLURMError",
    "SLURMLauncher",
    "Submission",
]
