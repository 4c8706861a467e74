"""Turn an experiment into what sbatch gets, and tell which experiments of a batch are still to be submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model_training_framework.config import ExperimentConfig
from model_training_framework.config.fields import UNLIMITED, duration_s
from model_training_framework.config.files import dumped
from model_training_framework.slurm.commands import Patience
from model_training_framework.slurm.errors import JobSubmissionError
from model_training_framework.slurm.job_values import Place, local_script, time_limit, values
from model_training_framework.slurm.queue import find_command
from model_training_framework.slurm.records import (
    SUBMISSIONS,
    SubmissionRecord,
    differing_keys,
    exit_status,
    fingerprint,
    put,
    read_record,
    write_record,
)
from model_training_framework.slurm.results import Outlook
from model_training_framework.slurm.states import JobStatus
from model_training_framework.slurm.status import states_of
from model_training_framework.slurm.submission import Job, link_job, now
from model_training_framework.slurm.template import render

# Files of an earlier job, which a new one of the same experiment starts without.
OF_AN_EARLIER_JOB = ("exit_code", "final_state", "preemptions", "cancelled", "pid")


@dataclass(frozen=True, slots=True)
class Source:
    """What jobs run.

    Attributes:
        project: folder that commands start in.
        commit: that it is checked out at; None where it is run as it is.
        worktree: the folder if it is a worktree of the launcher's.
    """

    project: Path
    commit: str | None = None
    worktree: Path | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier call did with an experiment.

    Attributes:
        record: its submission.
        status: state of its job now.
    """

    record: SubmissionRecord
    status: JobStatus

    @property
    def stands(self) -> bool:
        """Return whether nothing is to be submitted: the job waits, runs or is done."""
        return self.status.is_active or self.status.is_success


def prepare(
    experiment: ExperimentConfig,
    output_dir: Path,
    template: tuple[str, str],
    source: Source,
    outlook: Outlook,
    is_here: bool = False,
) -> Job:
    """Return an experiment as a job that is ready to be submitted; nothing is written.

    Args:
        experiment: its configuration.
        output_dir: folder of all experiments.
        template: name and text of the job script's template.
        source: what it runs.
        outlook: what is known of it beforehand.
        is_here: it runs on this machine, not through Slurm.

    Raises:
        JobSubmissionError: the configuration and the template do not fit together.
    """
    folder = output_dir / experiment.experiment_name
    place = Place(folder, source.project)
    limit = time_limit(experiment, outlook, is_here)
    script = render(*template, values(experiment, place, limit, source.commit))
    record = SubmissionRecord(
        job_id=None,
        submission="",
        script="",
        submitted_at=now(),
        configuration=fingerprint(experiment),
        commit=source.commit,
        worktree=str(source.worktree) if source.worktree else None,
        predicted=dict(outlook.predicted) if outlook.predicted else None,
    )
    limit_s = 0.0 if limit is None or limit.upper() in UNLIMITED else float(duration_s(limit))
    here = local_script(experiment, place)
    return Job(experiment, folder, script, here, source.project, place.log, limit_s, record)


def write(job: Job) -> None:
    """Write an experiment's folder, and remove what an earlier job left that would speak for the new one.

    The record comes first: from then on the experiment is not taken for one that an earlier job has finished.

    Raises:
        JobSubmissionError: a file cannot be written.
    """
    try:
        (job.folder / "logs").mkdir(parents=True, exist_ok=True)
        write_record(job.folder, job.record)
        for name in OF_AN_EARLIER_JOB:
            (job.folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise JobSubmissionError(f"{job.folder} cannot be written: {error.strerror or error}") from error
    put(job.folder / "config.yaml", dumped(job.experiment.to_dict(), "yaml"))
    put(job.folder / "job.sbatch", job.script)


def earlier(names: Sequence[str], output_dir: Path, patience: Patience, is_dry: bool = False) -> dict[str, Earlier]:
    """Return what earlier calls did with experiments; those never submitted are absent.

    Args:
        names: of the experiments.
        output_dir: folder of all experiments.
        patience: with a Slurm that does not answer.
        is_dry: write nothing.

    Raises:
        SLURMError: Slurm did not answer, or a record is damaged.
    """
    records: dict[str, SubmissionRecord] = {}
    for name in names:
        folder = output_dir / name
        record = read_record(folder)
        if record is not None and record.job_id is None:
            record = _interrupted(record, output_dir, folder, patience, is_dry)
        if record is not None and record.job_id is not None:
            records[name] = record
    # A job that says itself that it is done needs no question.
    done = {name for name in records if exit_status(output_dir / name) == 0}
    asked = {record.job_id for name, record in records.items() if name not in done and record.job_id}
    states = states_of(output_dir, asked, patience)
    return {
        name: Earlier(record, JobStatus.COMPLETED if name in done else states[str(record.job_id)])
        for name, record in records.items()
    }


def _interrupted(
    record: SubmissionRecord, output_dir: Path, folder: Path, patience: Patience, is_dry: bool
) -> SubmissionRecord | None:
    """Return the record of a submission that was cut off, with its job if Slurm has one after all."""
    if not record.script:
        return None
    job_id = find_command(record.script, patience)
    if job_id is None:
        return None
    place = output_dir / SUBMISSIONS / record.submission
    if (place / "is_array").exists():
        found = record.model_copy(update={"job_id": f"{job_id}_{record.array_index}"})
    else:
        found = record.model_copy(update={"job_id": job_id})
    if not is_dry:
        link_job(output_dir, place, job_id)
        write_record(folder, found)
    return found


def check_same(experiment: ExperimentConfig, job: Earlier, folder: Path) -> None:
    """Check that an experiment is that of its earlier job, where the job waits, runs, is done or left checkpoints.

    Training would otherwise go on from checkpoints of another configuration.

    Raises:
        JobSubmissionError: its configuration was another.
    """
    checkpoints = folder / experiment.checkpoint.checkpoint_dir
    has_checkpoints = checkpoints.is_dir() and any(checkpoints.iterdir())
    if job.record.configuration == fingerprint(experiment) or not (job.stands or has_checkpoints):
        return
    keys = ", ".join(differing_keys(experiment, folder)[:5]) or "its configuration"
    if job.stands:
        raise JobSubmissionError(
            f"it is {job.status} as job {job.record.job_id} with another {keys}; "
            "give it another name, or another output_dir"
        )
    raise JobSubmissionError(
        f"{checkpoints} has checkpoints of a training with another {keys}; give it another name or another output_dir, "
        "or remove them"
    )
