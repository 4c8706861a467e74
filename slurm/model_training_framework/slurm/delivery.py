"""Deliver a batch that is ready: to sbatch, to this machine, or (DRY_RUN) to nobody."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from model_training_framework.config import ExecutionMode, ExperimentConfig
from model_training_framework.slurm.commands import Patience
from model_training_framework.slurm.errors import JobSubmissionError, SLURMError
from model_training_framework.slurm.local import PREFIX, LocalRun, Pool, held
from model_training_framework.slurm.prepare import write
from model_training_framework.slurm.records import RECORD, write_record
from model_training_framework.slurm.results import BatchSubmissionResult, FailedSubmission, Submission
from model_training_framework.slurm.states import JobStatus
from model_training_framework.slurm.submission import (
    Job,
    Request,
    at_place,
    link_job,
    link_tasks,
    new_place,
    submit,
    with_job,
)

logger = logging.getLogger(__name__)

Outcome = dict[str, Submission | FailedSubmission]


@contextmanager
def locked(output_dir: Path) -> Iterator[int]:
    """Hold the lock of a folder of experiments, so that two launchers never submit the same one; yield its file.

    Raises:
        JobSubmissionError: the folder cannot be written.
    """
    try:
        is_new = not output_dir.exists()
        output_dir.mkdir(parents=True, exist_ok=True)
        if is_new:
            # What is written here is no part of the project: nobody is to commit it, or to miss it in a job's worktree.
            (output_dir / ".gitignore").write_text("*\n", encoding="ascii")
        stream = (output_dir / ".lock").open("ab")
    except OSError as error:
        raise JobSubmissionError(f"output_dir {output_dir} cannot be written: {error.strerror or error}") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("waits for another launcher, or its sbatch, in %s", output_dir)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def refused_names(experiments: Sequence[ExperimentConfig]) -> Iterator[tuple[str, FailedSubmission]]:
    """Yield the experiments that cannot be in one batch: those of one name would share a folder."""
    seen: set[str] = set()
    for experiment in experiments:
        name = experiment.experiment_name
        if name in seen:
            yield name, FailedSubmission(name, "experiment_name is given twice in the batch; each needs its own folder")
        seen.add(name)


def in_order(mode: ExecutionMode, experiments: Sequence[ExperimentConfig], outcome: Outcome) -> BatchSubmissionResult:
    """Return what became of a batch, in its order."""
    outcomes = [outcome[name] for name in dict.fromkeys(experiment.experiment_name for experiment in experiments)]
    return BatchSubmissionResult(
        mode,
        tuple(result for result in outcomes if isinstance(result, Submission)),
        tuple(result for result in outcomes if isinstance(result, FailedSubmission)),
    )


def planned(requests: Sequence[Request], output_dir: Path) -> Outcome:
    """Return what would be submitted; nothing is written."""
    outcome: Outcome = {}
    for request in requests:
        words = request.words(new_place(output_dir))
        outcome |= {
            job.name: Submission(job.name, None, job.folder, script=job.script, sbatch=words) for job in request.jobs
        }
    return outcome


def deliver(requests: Sequence[Request], output_dir: Path, patience: Patience, lock: int) -> Outcome:
    """Submit requests one after the other; once Slurm does not answer, what is left is not tried.

    Args:
        requests: what to submit.
        output_dir: folder of all experiments.
        patience: with a Slurm that does not answer.
        lock: file of the folder's lock.
    """
    outcome: Outcome = {}
    away: SLURMError | None = None
    for request in requests:
        place = new_place(output_dir)
        jobs = [at_place(job, place, request) for job in request.jobs]
        job_ids: list[str] = []
        try:
            if away is not None:
                raise away
            for index, job in enumerate(jobs):
                write(with_job(job, None, index if request.is_array else None))
            job_ids = submit(request, output_dir, place, patience, lock)
            for index, (job, job_id) in enumerate(zip(jobs, job_ids, strict=True)):
                write_record(job.folder, with_job(job, job_id, index if request.is_array else None).record)
                outcome[job.name] = Submission(
                    job.name, job_id, job.folder, script=job.script, sbatch=request.words(place)
                )
        except SLURMError as error:
            away = away or (None if isinstance(error, JobSubmissionError) else error)
            if isinstance(error, JobSubmissionError) and not job_ids:
                _forget(jobs)
            outcome |= {job.name: FailedSubmission(job.name, str(error)) for job in jobs if job.name not in outcome}
    return outcome


def _forget(jobs: Sequence[Job]) -> None:
    """Remove the records of jobs that Slurm refused, so that nobody asks it what became of them."""
    for job in jobs:
        with suppress(OSError):
            (job.folder / RECORD).unlink()


def placed_here(jobs: Sequence[Job], output_dir: Path, running: ExitStack) -> list[Job]:
    """Write the folders of experiments that are to run here, and hold their lock for as long as they do."""
    place = new_place(output_dir)
    link_tasks(place, jobs)
    running.enter_context(held(place))
    base = f"{PREFIX}{place.name}"
    link_job(output_dir, place, base)
    found = [with_job(at_place(job, place), f"{base}_{index}", index) for index, job in enumerate(jobs)]
    for job in found:
        write(job)
    return found


def run_here(jobs: Sequence[Job], limit: int) -> Outcome:
    """Run experiments on this machine, so many at once, to their end."""
    runs = [
        LocalRun(
            job.folder,
            job.local_script,
            job.project,
            job.experiment.preemption.max_preemptions,
            str(job.record.job_id),
        )
        for job in jobs
    ]
    pool = Pool(runs, limit)
    pool.run()
    outcome: Outcome = {}
    for job, run in zip(jobs, runs, strict=True):
        job_id = job.record.job_id
        if run.exit_code == 0:
            outcome[job.name] = Submission(
                job.name, job_id, job.folder, status=JobStatus.COMPLETED, script=job.local_script
            )
            continue
        if run.taken_by is not None:
            reason = f"job {run.taken_by} runs it"
        elif run.exit_code is None:
            stopped = pool.stopped_by.name if pool.stopped_by else "a signal"
            reason = f"stopped by {stopped}; the same call again goes on with it"
        else:
            reason = f"its command ended with exit status {run.exit_code}; see {job.folder}/logs/local.out"
        outcome[job.name] = FailedSubmission(job.name, reason, job_id)
    return outcome
