"""Submit experiments to Slurm, or run them here; ask for their states; cancel them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from model_training_framework.config import ExecutionMode, ExperimentConfig
from model_training_framework.config.fields import AUTO
from model_training_framework.slurm.commands import PATIENCE_S, Patience, ask
from model_training_framework.slurm.delivery import (
    Outcome,
    deliver,
    in_order,
    locked,
    placed_here,
    planned,
    refused_names,
    run_here,
)
from model_training_framework.slurm.errors import GitOperationError, JobSubmissionError, SLURMError
from model_training_framework.slurm.git_manager import GitManager
from model_training_framework.slurm.local import cancel_local, is_local
from model_training_framework.slurm.prepare import Earlier, Source, check_same, earlier, prepare
from model_training_framework.slurm.queue import longest_job_s, setting, show_job
from model_training_framework.slurm.records import RECORD, exit_status, read_record
from model_training_framework.slurm.results import BatchSubmissionResult, FailedSubmission, Outlook, Submission
from model_training_framework.slurm.states import JobStatus
from model_training_framework.slurm.status import states_of
from model_training_framework.slurm.submission import Job, Request
from model_training_framework.slurm.template import read_template


def arrays(jobs: Sequence[Job], largest: int) -> list[tuple[Job, ...]]:
    """Return the jobs in groups that ask for the same, in the batch's order, none larger than an array may be."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.asks_for(), []).append(job)
    return [
        tuple(group[start : start + largest]) for group in groups.values() for start in range(0, len(group), largest)
    ]


def is_uniform(jobs: Sequence[Job]) -> bool:
    """Return whether all jobs ask for the same, so that they can be one array."""
    return len({job.asks_for() for job in jobs}) <= 1


def in_lanes(groups: Sequence[tuple[Job, ...]], limit: int, name: str, after: tuple[str, ...]) -> list[Request]:
    """Return requests in lanes, in each of which one job runs at a time: Slurm's dependency ``singleton``.

    A group goes to the lane with the shortest total time limit, which keeps the lanes equally long. An array in a lane
    runs one of its tasks at a time.
    """
    total_s = [0.0] * limit
    found = []
    for group in groups:
        lane = min(range(limit), key=total_s.__getitem__)
        total_s[lane] += sum(max(job.limit_s, 1.0) for job in group)
        found.append(Request(group, throttle=1, job_name=f"{name}-lane-{lane + 1}", after=after, is_singleton=True))
    return found


def shared_out(groups: Sequence[tuple[Job, ...]], limit: int, after: tuple[str, ...]) -> list[Request]:
    """Return arrays among which the jobs that may run at once are shared out."""
    share, more = divmod(limit, len(groups))
    return [Request(group, throttle=share + (index < more), after=after) for index, group in enumerate(groups)]


def lane_name(output_dir: Path, submission: str) -> str:
    """Return a name for the lanes of a batch that no other has: singleton compares names of all jobs of a user."""
    return f"{output_dir.name[:20]}-{hashlib.sha256(f'{output_dir}/{submission}'.encode()).hexdigest()[:8]}"


def requests(
    jobs: Sequence[Job], limit: int | None, active: Sequence[str], largest_array: int, name: str
) -> list[Request]:
    """Return the calls of sbatch for a batch.

    Args:
        jobs: what to submit.
        limit: how many may run at once; None for no limit.
        active: jobs of earlier calls that still wait or run, and count for the limit.
        largest_array: tasks that an array may have.
        name: of the lanes.
    """
    if not jobs:
        return []
    groups = arrays(jobs, largest_array)
    if limit is None:
        return [Request(group) for group in groups]
    free = limit - len(active)
    after = () if free > 0 else tuple(sorted({job_id.partition("_")[0] for job_id in active}, key=int))
    at_once = free if free > 0 else limit
    if at_once >= len(jobs):
        return [Request(group, after=after) for group in groups]
    if not is_uniform(jobs):
        return in_lanes([(job,) for job in jobs], at_once, name, after)
    if len(groups) <= at_once:
        return shared_out(groups, at_once, after)
    return in_lanes(groups, at_once, name, after)


WORKTREES = ".worktrees"
DEFAULT_LARGEST_ARRAY = 1001  # Slurm's default of MaxArraySize
NOT_ALLOWED = "Access/permission denied"
ALREADY_GONE = ("Invalid job id", "already completing")


class SLURMLauncher:
    """Submits experiments; the same call again submits only what is missing or failed.

    Jobs run the project's folder, or with a GitManager a worktree at the commit that is checked out at submission, so
    that editing the checkout does not change jobs that wait. Uncommitted changes are then refused, since no job would
    run them; ``allow_dirty`` lets the commit run without them, with a warning.
    """

    def __init__(
        self,
        slurm_template_path: str | Path | None = None,
        output_dir: str | Path = "experiments",
        git_manager: GitManager | None = None,
        *,
        project_root: str | Path | None = None,
        outlook: Callable[[ExperimentConfig], Outlook | None] | None = None,
        allow_dirty: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Read the template; nothing is written and Slurm is not asked.

        Args:
            slurm_template_path: template of the job script; the one that comes with the framework if absent.
            output_dir: folder that holds the experiments' folders; on a file system that all nodes see.
            git_manager: of the repository that jobs run; without one they run the project's folder as it is.
            project_root: folder that commands start in; the git manager's, or the current one, if absent.
            outlook: what is known of an experiment beforehand: time limit, whether it fits, what was predicted.
            allow_dirty: submit although the repository has uncommitted changes, which no job will run.
            patience_s: how long to ask a Slurm that does not answer, in seconds.

        Raises:
            JobSubmissionError: the template cannot be read.
        """
        self.template = read_template(slurm_template_path)
        self.output_dir = Path(output_dir).resolve()
        self.git_manager = git_manager
        self.project_root = Path(project_root or (git_manager.repo_path if git_manager else Path.cwd())).resolve()
        self.outlook = outlook
        self.allow_dirty = allow_dirty
        self.patience = Patience(patience_s)

    def submit_experiment(
        self,
        experiment_config: ExperimentConfig,
        execution_mode: ExecutionMode = ExecutionMode.SLURM,
        *,
        force: bool = False,
    ) -> str:
        """Submit one experiment, or run it here to its end.

        Args:
            experiment_config: its configuration.
            execution_mode: SLURM, LOCAL or DRY_RUN.
            force: submit although it is known not to fit.

        Returns:
            The job's id. For an experiment that waits, runs or is done already that job's id, and nothing is
            submitted; in DRY_RUN the job script that would be submitted.

        Raises:
            JobSubmissionError: it was not submitted, or (LOCAL) its command failed; the message says why.
            SLURMError: Slurm did not answer.
            GitOperationError: there are uncommitted changes, or git failed.
        """
        result = self.submit_experiment_batch([experiment_config], execution_mode, force=force)
        if result.failed:
            raise JobSubmissionError(f"{result.failed[0].experiment_name}: {result.failed[0].reason}")
        submission = result.successful[0]
        return submission.job_id if submission.job_id is not None else submission.script

    def submit_experiment_batch(
        self,
        experiments: Sequence[ExperimentConfig],
        execution_mode: ExecutionMode = ExecutionMode.SLURM,
        max_concurrent_jobs: int | None = None,
        *,
        force: bool = False,
    ) -> BatchSubmissionResult:
        """Submit what is missing or failed of a batch.

        Experiments that ask for the same become an array. The limit is held by Slurm itself: the array's own, or lanes
        of jobs that wait for each other where experiments ask for different things.

        Args:
            experiments: the batch.
            execution_mode: SLURM submits; LOCAL runs them here and waits for them; DRY_RUN writes nothing.
            max_concurrent_jobs: how many may run at once, those of all earlier calls counted; all if absent, LOCAL one.
            force: submit also what is known not to fit.

        Raises:
            SLURMError: Slurm did not answer before anything was submitted.
            GitOperationError: there are uncommitted changes, or git failed.
            ValueError: max_concurrent_jobs is less than 1.
        """
        if max_concurrent_jobs is not None and max_concurrent_jobs < 1:
            raise ValueError(
                f"max_concurrent_jobs is {max_concurrent_jobs}; it must be 1 or more, or None for no limit"
            )
        mode = ExecutionMode(execution_mode)
        if mode is ExecutionMode.DRY_RUN:
            before = self.get_experiment_states(experiments)
            jobs, outcome = self._jobs(experiments, before, force, mode)
            outcome |= planned(self._requests(jobs, max_concurrent_jobs, before, is_dry=True), self.output_dir)
            return in_order(mode, experiments, outcome)
        if mode is ExecutionMode.SLURM and shutil.which("sbatch") is None:
            raise SLURMError("sbatch is not on PATH: this is no machine of a Slurm cluster; use LOCAL or DRY_RUN")
        with ExitStack() as running_here:
            with locked(self.output_dir) as lock:
                before = earlier(
                    [experiment.experiment_name for experiment in experiments], self.output_dir, self.patience
                )
                jobs, outcome = self._jobs(experiments, before, force, mode)
                if mode is ExecutionMode.SLURM:
                    asked = self._requests(jobs, max_concurrent_jobs, before, is_dry=False)
                    outcome |= deliver(asked, self.output_dir, self.patience, lock)
                elif jobs:
                    jobs = placed_here(jobs, self.output_dir, running_here)
            if mode is ExecutionMode.LOCAL and jobs:
                outcome |= run_here(jobs, max_concurrent_jobs or 1)
        return in_order(mode, experiments, outcome)

    def get_job_status(self, job_id: str) -> JobStatus:
        """Return the state of a job, of a task of an array (``12_3``), or of a whole array.

        Raises:
            SLURMError: Slurm did not answer for as long as the patience lasted. It does not mean that the job is gone.
            ValueError: it is not the id of a job.
        """
        return self.get_job_statuses([job_id])[job_id]

    def get_job_statuses(self, job_ids: Collection[str]) -> dict[str, JobStatus]:
        """Return the states of many jobs with few questions to Slurm.

        Raises:
            SLURMError: Slurm did not answer.
            ValueError: one is not the id of a job.
        """
        states = states_of(self.output_dir, job_ids, self.patience)
        return {job_id: state.status for job_id, state in states.items()}

    def get_job_details(self, job_id: str) -> dict[str, str]:
        """Return what the controller keeps of a job (Reason, Restarts, NodeList …); nothing once it is forgotten."""
        return show_job(job_id, self.patience)

    def get_experiment_states(self, experiments: Sequence[ExperimentConfig]) -> dict[str, Earlier]:
        """Return record and state of every experiment that was ever submitted, by its name.

        Raises:
            SLURMError: Slurm did not answer, or a record is damaged.
        """
        return self.get_states([experiment.experiment_name for experiment in experiments])

    def get_states(self, names: Sequence[str]) -> dict[str, Earlier]:
        """Return record and state of the experiments of these names that were ever submitted; errors as above."""
        return earlier(names, self.output_dir, self.patience, is_dry=True)

    def cancel_job(self, job_id: str) -> bool:
        """Cancel a job, a task of an array or a whole array.

        Returns:
            Whether there was something to cancel: False for a job that has ended or that nobody knows.

        Raises:
            SLURMError: Slurm did not answer, or refused (the job of another user).
            ValueError: it is not the id of a job.
        """
        if is_local(job_id):
            return cancel_local(self.output_dir, job_id)
        if self.get_job_status(job_id).is_final:
            return False
        answer = ask("scancel", job_id, patience=self.patience, settled=(*ALREADY_GONE, NOT_ALLOWED))
        if NOT_ALLOWED in answer.complaint:
            raise SLURMError(f"scancel {job_id}: {answer.complaint}")
        return True

    def prune_worktrees(self) -> list[Path]:
        """Remove worktrees that no waiting or running job uses; returns what was removed.

        Raises:
            SLURMError: Slurm did not answer, so that nothing is known about what is still used.
            GitOperationError: git failed.
        """
        if self.git_manager is None or not self.output_dir.is_dir():
            return []
        with locked(self.output_dir):
            jobs = earlier(self._submitted(), self.output_dir, self.patience).values()
            used = [job.record.worktree for job in jobs if job.record.worktree and job.status.is_active]
            return self.git_manager.prune(self.output_dir / WORKTREES, used)

    def _submitted(self) -> set[str]:
        """Return the names of all experiments in the folder that were ever submitted."""
        return {path.parent.name for path in self.output_dir.glob(f"*/{RECORD}")}

    def _prune_ended(self, git: GitManager) -> None:
        """Remove the worktrees of experiments that have all ended, by their own files, without a question to Slurm."""
        folder = self.output_dir / WORKTREES
        if not folder.is_dir() or len(list(folder.iterdir())) < 2:
            return
        going = [self.output_dir / name for name in self._submitted() if exit_status(self.output_dir / name) is None]
        records = [record for record in map(read_record, going) if record is not None]
        git.prune(folder, [record.worktree for record in records if record.worktree])

    def _source(self, is_dry: bool) -> Source:
        """Return what jobs run: the project's folder, or a worktree at the commit that is checked out."""
        git = self.git_manager
        if git is None:
            return Source(self.project_root)
        commit = git.require_clean(self.allow_dirty or is_dry)
        folder = self.output_dir / WORKTREES
        if is_dry:
            return Source(git.worktree_place(commit, folder), commit)
        self._prune_ended(git)
        worktree = git.worktree(commit, folder)
        if not worktree.is_dir():
            raise GitOperationError(f"{git.repo_path} is not in commit {commit[:12]}, which jobs run; commit its files")
        return Source(worktree, commit, worktree)

    def _jobs(
        self, experiments: Sequence[ExperimentConfig], before: Mapping[str, Earlier], force: bool, mode: ExecutionMode
    ) -> tuple[list[Job], Outcome]:
        """Return what is to be submitted, and what became of everything else."""
        is_here = mode is ExecutionMode.LOCAL  # on another device than the predicted one
        outcome: Outcome = dict(refused_names(experiments))
        jobs: list[Job] = []
        source: Source | None = None
        longest: dict[str | None, float | None] = {}
        for experiment in experiments:
            name = experiment.experiment_name
            if name in outcome:
                continue
            job = before.get(name)
            try:
                if job is not None:
                    check_same(experiment, job, self.output_dir / name)
                if job is not None and job.stands:
                    outcome[name] = Submission(
                        name, job.record.job_id, self.output_dir / name, is_new=False, status=job.status
                    )
                    continue
                outlook = (self.outlook(experiment) if self.outlook else None) or Outlook()
                if outlook.refusal and not force and not is_here:
                    raise JobSubmissionError(f"{outlook.refusal}; force=True (--force) submits it all the same")
                source = source or self._source(mode is ExecutionMode.DRY_RUN)
                longest_s = self._longest_s(experiment, longest) if mode is ExecutionMode.SLURM else None
                jobs.append(prepare(experiment, self.output_dir, self.template, source, outlook, is_here, longest_s))
            except JobSubmissionError as error:
                outcome[name] = FailedSubmission(name, str(error))
        return jobs, outcome

    def _longest_s(self, experiment: ExperimentConfig, known: dict[str | None, float | None]) -> float | None:
        """Return the time limit of an experiment's partition, where its own is to be the predicted one."""
        slurm = experiment.slurm
        if slurm is None or slurm.time_limit != AUTO:
            return None
        if slurm.partition not in known:
            known[slurm.partition] = longest_job_s(slurm.partition, self.patience)
        return known[slurm.partition]

    def _requests(
        self, jobs: Sequence[Job], limit: int | None, before: Mapping[str, Earlier], is_dry: bool
    ) -> list[Request]:
        if not jobs:
            return []
        if limit is not None and not is_dry:  # those of other batches in this folder count too
            before = {**earlier(self._submitted() - before.keys(), self.output_dir, self.patience), **before}
        active = sorted(
            str(job.record.job_id)
            for job in before.values()
            if job.status.is_active and not is_local(str(job.record.job_id))
        )
        # A plan needs no cluster; only how a very large array is cut into several can then differ.
        size = setting("MaxArraySize", self.patience) if len(jobs) > 1 and not is_dry else None
        largest = int(size) if size and size.isdigit() and int(size) > 1 else DEFAULT_LARGEST_ARRAY
        return requests(jobs, limit, active, largest, lane_name(self.output_dir, jobs[0].record.submitted_at))
