"""States of a job, as squeue and sacct name them, and their meaning to a waiting launcher."""

from __future__ import annotations

from enum import StrEnum

from model_training_framework.slurm.errors import SLURMError

# What a trainer that was preempted returns (EX_TEMPFAIL of sysexits.h): saved, to be resumed.
TO_BE_RESUMED = 75


class JobStatus(StrEnum):
    """The state of a job. Source: squeue(1) and sacct(1), "JOB STATE CODES"; UNKNOWN is our own.

    UNKNOWN: Slurm answered that it has no such job, accounting has no record of it, and it left no exit code.
    PREEMPTED: ended by preemption for good, either by Slurm (PreemptMode=CANCEL) or after max_preemptions requeues.
    """

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    SIGNALING = "SIGNALING"
    RESIZING = "RESIZING"
    STAGE_OUT = "STAGE_OUT"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    POWER_UP_NODE = "POWER_UP_NODE"

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"

    UNKNOWN = "UNKNOWN"

    @property
    def is_active(self) -> bool:
        """Return whether Slurm still has work to do on the job: it waits, runs, or is held or requeued."""
        return not self.is_final

    @property
    def is_final(self) -> bool:
        """Return whether nothing more will happen to the job."""
        return self in _FINAL

    @property
    def is_success(self) -> bool:
        """Return whether the job's command ended with 0."""
        return self is JobStatus.COMPLETED


_FINAL = frozenset(
    {
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.CANCELLED,
        JobStatus.TIMEOUT,
        JobStatus.PREEMPTED,
        JobStatus.NODE_FAIL,
        JobStatus.OUT_OF_MEMORY,
        JobStatus.BOOT_FAIL,
        JobStatus.DEADLINE,
        JobStatus.LAUNCH_FAILED,
        JobStatus.RECONFIG_FAIL,
        JobStatus.EXPIRED,
        JobStatus.REVOKED,
        JobStatus.UNKNOWN,
    }
)


def parse_state(text: str) -> JobStatus:
    """Return the state that squeue, sacct or scontrol printed.

    Args:
        text: sacct says who cancelled (``CANCELLED by 1000``) and cuts a name short with a plus where asked to.

    Raises:
        SLURMError: the state is not one of those known; taking it for another could start a job twice.

    >>> parse_state("CANCELLED by 1000")
    <JobStatus.CANCELLED: 'CANCELLED'>
    """
    words = text.split()
    word = words[0].rstrip("+") if words else ""
    if word not in JobStatus.__members__ or word == JobStatus.UNKNOWN:
        raise SLURMError(f"a job's state is {text!r}; known are {', '.join(_known())}")
    return JobStatus[word]


def _known() -> list[str]:
    return [status for status in JobStatus if status is not JobStatus.UNKNOWN]


def status_of_exit(exit_code: int) -> JobStatus:
    """Return the state of a job whose command ended for good, where nothing else is known of it.

    >>> status_of_exit(TO_BE_RESUMED)
    <JobStatus.PREEMPTED: 'PREEMPTED'>
    """
    if exit_code == TO_BE_RESUMED:
        return JobStatus.PREEMPTED
    return JobStatus.FAILED if exit_code else JobStatus.COMPLETED
