"""Give jobs to sbatch, each exactly once: also where the controller took a job and its answer was lost."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from model_training_framework.config import ExperimentConfig
from model_training_framework.slurm.commands import Patience, run_once
from model_training_framework.slurm.errors import JobSubmissionError, SLURMError
from model_training_framework.slurm.queue import accounted_names, find_command
from model_training_framework.slurm.records import SUBMISSIONS, SubmissionRecord, job_of_submission, put
from model_training_framework.slurm.template import header, interpreter

logger = logging.getLogger(__name__)

JOB_ID = re.compile(r"(\d+)(?:;\S+)?")  # sbatch --parsable: the id, and the cluster's name where there are several
STAMP = "%Y%m%dT%H%M%SZ"
PER_JOB = re.compile(r"#SBATCH\s+--(job-name|output)=")


@dataclass(frozen=True, slots=True)
class Job:
    """An experiment that is ready to be submitted.

    Attributes:
        experiment: its configuration.
        folder: its folder.
        script: its job script.
        log: its output, as sbatch --output takes it for a single job.
        limit_s: its time limit in seconds, to balance lanes; 0 where the partition decides.
        record: its submission.json, still without a job.
    """

    experiment: ExperimentConfig
    folder: Path
    script: str
    local_script: str
    project: Path
    log: str
    limit_s: float
    record: SubmissionRecord

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self.experiment.experiment_name

    def asks_for(self) -> tuple[str, ...]:
        """Return what jobs of one array must have in common: shell and options, their names and outputs aside."""
        return (interpreter(self.script), *(line for line in header(self.script) if not PER_JOB.match(line)))


@dataclass(frozen=True, slots=True)
class Request:
    """One call of sbatch: a job, or an array of jobs that ask for the same.

    Attributes:
        jobs: what it runs; more than one make an array.
        throttle: tasks of the array that may run at once; None for all.
        job_name: name of the lane that the job waits in; None for its own.
        after: jobs that must have ended before.
        is_singleton: it waits for earlier jobs of its name.
    """

    jobs: tuple[Job, ...]
    throttle: int | None = None
    job_name: str | None = None
    after: tuple[str, ...] = ()
    is_singleton: bool = False

    @property
    def is_array(self) -> bool:
        """Return whether this is an array."""
        return len(self.jobs) > 1

    def words(self, place: Path) -> tuple[str, ...]:
        """Return the command line that submits it.

        Args:
            place: folder of the submission.
        """
        words = ["sbatch", "--parsable"]
        if self.is_array:
            limit = f"%{self.throttle}" if self.throttle and self.throttle < len(self.jobs) else ""
            words.append(f"--array=0-{len(self.jobs) - 1}{limit}")
            if any(line.startswith("#SBATCH --output=") for line in header(self.jobs[0].script)):
                words.append(f"--output={str(place).replace('%', '%%')}/%a/logs/slurm-%A_%a.out")
        elif not any(re.match(r"#SBATCH\s+(--output|-o)\b", line) for line in header(self.jobs[0].script)):
            words += [f"--output={self.jobs[0].log}", "--open-mode=append"]
        words.append(f"--job-name={self.name(place)}")
        conditions = [f"afterany:{':'.join(self.after)}"] if self.after else []
        conditions += ["singleton"] if self.is_singleton else []
        if conditions:
            words.append(f"--dependency={','.join(conditions)}")
        return (*words, str(place / "submit.sbatch"))

    def name(self, place: Path) -> str:
        """Return the job's name, which no other submission has: accounting is asked for it.

        Jobs of a lane wait for each other by their common name. Otherwise it is the name that the experiments have in
        common, or that of the only one or of their folder, with the end of the submission's.
        """
        if self.job_name:
            return self.job_name
        names = {job.experiment.slurm.job_name if job.experiment.slurm else None for job in self.jobs}
        common = names.pop() if len(names) == 1 else None
        name = common or (place.parent.parent.name if self.is_array else self.jobs[0].name)
        return f"{name}-{place.name.rpartition('-')[2]}"

    def wrapper(self, place: Path) -> str:
        """Return the script that sbatch gets: the options of the jobs' own script, which it then becomes."""
        script = self.jobs[0].script
        shell = interpreter(script)
        task = "${SLURM_ARRAY_TASK_ID:-0}"
        quoted = str(place).replace("'", "'\\''")
        return "\n".join([f"#!{shell}", *header(script), f"exec {shell} '{quoted}'/\"{task}\"/job.sbatch", ""])


def new_place(output_dir: Path) -> Path:
    """Return the folder of a new submission, which no other has."""
    return output_dir / SUBMISSIONS / f"{datetime.now(UTC).strftime(STAMP)}-{secrets.token_hex(4)}"


def now() -> str:
    """Return the time as submission.json holds it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def submit(request: Request, output_dir: Path, place: Path, patience: Patience, lock: int) -> list[str]:
    """Submit a request and return the job of each of its experiments.

    What was submitted is on the disk before sbatch is called, and who it is is written after: where the launcher is
    killed in between, the next one finds the job. It waits for an sbatch that outlives its launcher, since that holds
    the lock of output_dir, too.

    Raises:
        JobSubmissionError: Slurm refused it; nothing was submitted.
        SLURMError: Slurm did not answer; whether it was submitted will show when it does.
    """
    link_tasks(place, request.jobs)
    if request.is_array:
        put(place / "is_array", "")
    put(place / "submit.sbatch", request.wrapper(place))
    job_id = _sbatch(request, output_dir, place, patience, lock)
    link_job(output_dir, place, job_id)
    return [f"{job_id}_{index}" for index in range(len(request.jobs))] if request.is_array else [job_id]


def link_tasks(place: Path, jobs: Sequence[Job]) -> None:
    """Make the folder of a submission, with a link to every experiment's by its index.

    Raises:
        JobSubmissionError: it cannot be written.
    """
    try:
        place.mkdir(parents=True)
        for index, job in enumerate(jobs):
            (place / str(index)).symlink_to(os.path.relpath(job.folder, place), target_is_directory=True)
    except OSError as error:
        raise JobSubmissionError(f"{place} cannot be written: {error.strerror or error}") from error


def link_job(output_dir: Path, place: Path, job_id: str) -> None:
    """Make a submission known by its job."""
    link = output_dir / SUBMISSIONS / f"job-{job_id}"
    link.unlink(missing_ok=True)  # of a cluster that counts from 1 again
    link.symlink_to(place.name, target_is_directory=True)


def find_submitted(record: SubmissionRecord, output_dir: Path, patience: Patience) -> str | None:
    """Return the job that a submission became; None if it became none, or if Slurm has forgotten it.

    Raises:
        SLURMError: Slurm did not answer.
    """
    if not record.script:
        return None
    known = job_of_submission(output_dir, record.submission) or find_command(record.script, patience)
    if known or not record.job_name:
        return known
    since = datetime.fromisoformat(record.submitted_at)
    for job_id in accounted_names(record.job_name, since, patience):
        if not (output_dir / SUBMISSIONS / f"job-{job_id}").is_symlink():  # another one of the same lane
            return job_id
    return None


def _sbatch(request: Request, output_dir: Path, place: Path, patience: Patience, lock: int) -> str:
    """Call sbatch until the controller has the job, and look for it before another try."""
    pauses = patience.pauses()
    script = place / "submit.sbatch"
    while True:
        answer = run_once(*request.words(place), keep_open=(lock,))
        found = JOB_ID.fullmatch(answer.output.strip())
        if answer.status == 0 and found:
            return found[1]
        if not answer.is_away:
            said = answer.complaint or answer.output.strip() or f"exit status {answer.status}"
            raise JobSubmissionError(f"sbatch refused {script}: {said}")
        pause = next(pauses, None)
        if pause is None:
            raise SLURMError(
                f"sbatch: no answer in {patience.seconds:.0f} s: {answer.complaint}; submit the same batch again later"
            )
        logger.warning("%s; tried again in %.1f s", answer.complaint, pause)
        time.sleep(pause)
        taken = find_submitted(at_place(request.jobs[0], place, request).record, output_dir, patience)
        if taken:
            return taken


def with_job(job: Job, job_id: str | None, index: int | None) -> Job:
    """Return a job whose record says what it became: the id of Slurm, and the task of an array."""
    return replace(job, record=job.record.model_copy(update={"job_id": job_id, "array_index": index}))


def at_place(job: Job, place: Path, request: Request | None = None) -> Job:
    """Return a job whose record says where it is submitted, and by which request to Slurm, if any."""
    update: dict[str, str | None] = {"submission": place.name, "script": str(place / "submit.sbatch")}
    update["job_name"] = request.name(place) if request else None
    return replace(job, record=job.record.model_copy(update=update))
