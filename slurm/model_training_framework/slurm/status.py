"""State of jobs, from Slurm's queue, the jobs' own files and accounting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from model_training_framework.slurm.commands import Patience
from model_training_framework.slurm.local import is_local, local_status
from model_training_framework.slurm.queue import QueueEntry, accounted, queue_of
from model_training_framework.slurm.records import folder_of_job, read_record, recorded_end, tasks_of_job
from model_training_framework.slurm.states import JobStatus

# An array's state is the first of these that one of its tasks has; else that of the first task that failed.
ARRAY_ORDER = (JobStatus.RUNNING, JobStatus.COMPLETING, JobStatus.CONFIGURING, JobStatus.PENDING)


class JobState(NamedTuple):
    """A job's state, and Slurm's reason for it (JobHeldUser, PartitionTimeLimit …), empty where it gives none."""

    status: JobStatus
    reason: str = ""


def states_of(output_dir: Path, job_ids: Collection[str], patience: Patience) -> dict[str, JobState]:
    """Return the state of every job.

    Raises:
        SLURMError: Slurm did not answer.
        ValueError: an id is not that of a job.
    """
    states = {job_id: JobState(local_status(output_dir, job_id)) for job_id in job_ids if is_local(job_id)}
    wanted = [job_id for job_id in job_ids if not is_local(job_id)]
    if not wanted:
        return states
    tasks = {job_id: tasks_of_job(output_dir, job_id) for job_id in wanted if "_" not in job_id}
    queue = queue_of(wanted, patience)
    for job_id, own in tasks.items():
        if not own:  # not an array of this launcher; perhaps somebody else's
            own += sorted(
                (entry for entry in queue if entry.startswith(f"{job_id}_")),
                key=lambda task: int(task[len(job_id) + 1 :]),
            )
    single = {task for job_id in wanted for task in (tasks.get(job_id) or [job_id])}
    found = _states(output_dir, single, queue, patience)
    for job_id in wanted:
        own = tasks.get(job_id) or []
        states[job_id] = _of_array([found[task] for task in own]) if own else found[job_id]
    return states


def _states(
    output_dir: Path, job_ids: Iterable[str], queue: dict[str, QueueEntry], patience: Patience
) -> dict[str, JobState]:
    """Return the states of single jobs; accounting is asked only about those that nothing else knows."""
    found: dict[str, JobState] = {}
    unknown: list[str] = []
    for job_id in job_ids:
        entry, end = queue.get(job_id), _end_of(output_dir, job_id)
        if end is JobStatus.COMPLETED and (entry is None or entry.status.is_final):
            # Also where Slurm ended it in that moment, or where it gave way to the one that ended.
            found[job_id] = JobState(end)
        elif entry is not None:
            # Slurm calls a job failed that gave up after max_preemptions requeues.
            gave_up = entry.status is JobStatus.FAILED and end is JobStatus.PREEMPTED
            found[job_id] = JobState(JobStatus.PREEMPTED) if gave_up else JobState(entry.status, entry.reason)
        elif end is not None:
            found[job_id] = JobState(end)
        else:
            unknown.append(job_id)
    records = accounted(unknown, patience) if unknown else {}
    return found | {job_id: JobState(records.get(job_id, JobStatus.UNKNOWN)) for job_id in unknown}


def _end_of(output_dir: Path, job_id: str) -> JobStatus | None:
    """Return how a job ended, by the files in its experiment's folder, unless a later job has written them."""
    folder = folder_of_job(output_dir, job_id)
    if folder is None:
        return None
    record = read_record(folder)
    return recorded_end(folder) if record is not None and record.job_id == job_id else None


def _of_array(states: Sequence[JobState]) -> JobState:
    """Return one state for an array."""
    for status in ARRAY_ORDER:
        for state in states:
            if state.status is status:
                return state
    rest = [state for state in states if state.status.is_active]
    rest = rest or [state for state in states if not state.status.is_success]
    return rest[0] if rest else JobState(JobStatus.COMPLETED)
