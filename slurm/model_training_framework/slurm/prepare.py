"""Turn experiments into sbatch's inputs, and select those of a batch that are still to be submitted."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from model_training_framework.config import ExperimentConfig
from model_training_framework.config.fields import UNLIMITED, duration_s
from model_training_framework.config.files import dumped
from model_training_framework.slurm.claims import Claim, newest_claim
from model_training_framework.slurm.commands import Patience
from model_training_framework.slurm.errors import JobSubmissionError
from model_training_framework.slurm.job_values import Place, further_starts, local_script, time_limit, values
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
from model_training_framework.slurm.status import JobState, states_of
from model_training_framework.slurm.submission import Job, find_submitted, link_job, now
from model_training_framework.slurm.template import render

JOB = re.compile(r"\d+(_\d+)?|local-.+")  # whose state can be asked for
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
        reason: of that state, in Slurm's word; empty where it gives none.
    """

    record: SubmissionRecord
    status: JobStatus
    reason: str = ""

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
    longest_s: float | None = None,
) -> Job:
    """Return an experiment as a job that is ready to be submitted; nothing is written.

    Args:
        experiment: its configuration.
        output_dir: folder of all experiments.
        template: name and text of the job script's template.
        source: what it runs.
        outlook: what is known of it beforehand.
        is_here: it runs on this machine, not through Slurm.
        longest_s: time limit of its partition; None: none, or not known.

    Raises:
        JobSubmissionError: the configuration and the template do not fit together.
    """
    folder = output_dir / experiment.experiment_name
    place = Place(folder, source.project)
    starts = further_starts(experiment, outlook, longest_s)
    limit = time_limit(experiment, outlook, is_here, longest_s)
    script = render(*template, values(experiment, place, limit, source.commit, starts))
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

    The record comes first: from then on the experiment is not taken for one that an earlier job has failed. That one
    of which nothing was known has ended it with 0 just now stays.

    Raises:
        JobSubmissionError: a file cannot be written.
    """
    try:
        (job.folder / "logs").mkdir(parents=True, exist_ok=True)
        write_record(job.folder, job.record)
        for name in OF_AN_EARLIER_JOB if exit_status(job.folder) != 0 else ():
            (job.folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise JobSubmissionError(f"{job.folder} cannot be written: {error.strerror or error}") from error
    put(job.folder / "config.yaml", dumped(job.experiment.to_dict(), "yaml"))
    put(job.folder / "job.sbatch", job.script)


def earlier(names: Collection[str], output_dir: Path, patience: Patience, is_dry: bool = False) -> dict[str, Earlier]:
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
    claims: dict[str, Claim] = {}
    cut_off: dict[str, str | None] = {}
    # A job that says itself that it is done needs no question.
    done = {name for name in names if exit_status(output_dir / name) == 0}
    for name in names:
        folder = output_dir / name
        record, claim = read_record(folder), newest_claim(folder)
        if record is not None and record.job_id is None:
            if record.submission not in cut_off and name not in done:
                cut_off[record.submission] = find_submitted(record, output_dir, patience)
            record = _interrupted(folder, record, cut_off.get(record.submission), claim, is_dry)
        if record is not None and (record.job_id is not None or name in done):
            records[name] = record
        if claim is not None and claim.stands and name not in done and JOB.fullmatch(claim.job_id):
            claims[name] = claim
    asked = {record.job_id for name, record in records.items() if name not in done and record.job_id}
    states = states_of(output_dir, asked | {claim.job_id for claim in claims.values()}, patience)
    found: dict[str, Earlier] = {}
    for name, record in records.items():
        state = JobState(JobStatus.COMPLETED) if name in done else states[str(record.job_id)]
        found[name] = Earlier(record, *state)
        claim = claims.get(name)
        if claim and states[claim.job_id].status.is_active and not found[name].stands:  # the recorded one gave way
            found[name] = Earlier(record.model_copy(update={"job_id": claim.job_id}), *states[claim.job_id])
    for claim in claims.values() if not is_dry else ():
        if states[claim.job_id].status.is_final:
            claim.end()
    return found


def _interrupted(
    folder: Path, record: SubmissionRecord, job_id: str | None, claim: Claim | None, is_dry: bool
) -> SubmissionRecord:
    """Return the record of a submission that was cut off, with its job if there is one after all.

    Slurm may have forgotten it (MinJobAge, no accounting); what it ran says then who it was.
    """
    output_dir = folder.parent
    if job_id is None:
        return record.model_copy(update={"job_id": claim.job_id}) if claim else record
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
