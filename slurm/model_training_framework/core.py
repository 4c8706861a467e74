"""The framework's front door: grids of experiments, predicted, run here or submitted to Slurm."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_training_framework.config import (
    ConfigurationError,
    ConfigurationManager,
    ExecutionMode,
    ExperimentConfig,
    ExperimentState,
    GridExperiment,
    GridSearchResult,
    NamingStrategy,
    ParameterGrid,
    ParameterGridSearch,
)
from model_training_framework.config.fields import AUTO
from model_training_framework.config.search import Experiment
from model_training_framework.prediction import ExperimentPrediction, time_limit_s, try_predict
from model_training_framework.slurm import (
    PATIENCE_S,
    BatchSubmissionResult,
    FailedSubmission,
    GitManager,
    GitOperationError,
    JobStatus,
    Outlook,
    SLURMLauncher,
    Submission,
)
from model_training_framework.utils import Error, Result

EXPERIMENTS = "experiments"


class Outlooks:
    """Answers the launcher from predictions; every experiment is predicted once."""

    def __init__(self, project_root: Path) -> None:
        """Take the folder that files in a ``prediction`` section are relative to."""
        self._project_root = project_root
        self._known: dict[str, tuple[ExperimentConfig, Result[ExperimentPrediction, str]]] = {}

    def __call__(self, config: ExperimentConfig) -> Outlook:
        """Return time limit, refusal and prediction of an experiment, or why there is no limit."""
        answer = self._answer(config)
        if isinstance(answer, Error):
            return Outlook(why_no_limit=answer.error.rstrip("."))
        outlook = Outlook(refusal=answer.value.refusal, predicted=answer.value.to_dict())
        if config.slurm is None or config.slurm.time_limit != AUTO:
            return outlook
        try:
            return replace(outlook, time_limit_s=float(time_limit_s(config, answer.value)))
        except ConfigurationError as error:
            return replace(outlook, why_no_limit=str(error))

    def forecast(self, config: ExperimentConfig) -> ExperimentPrediction | None:
        """Return the prediction of an experiment; None where there is none."""
        answer = self._answer(config)
        return None if isinstance(answer, Error) else answer.value

    def why_not(self, config: ExperimentConfig) -> str | None:
        """Return why an experiment cannot be predicted; None where it can."""
        answer = self._answer(config)
        return f"not predicted: {answer.error}" if isinstance(answer, Error) else None

    def _answer(self, config: ExperimentConfig) -> Result[ExperimentPrediction, str]:
        """Return prediction or reason; of the same experiment only once."""
        known, answer = self._known.get(config.experiment_name, (None, None))
        if answer is None or known is not config:
            answer = try_predict(config, self._project_root)
            self._known[config.experiment_name] = (config, answer)
        return answer


class ModelTrainingFramework:
    """A project whose experiments are predicted, then run here or submitted to Slurm.

    Jobs run the project at the commit that is checked out when they are submitted, or the folder as it is where the
    project is not in a git repository.

    Attributes:
        project_root: folder of the project.
        config_dir: folder of its configurations.
        slurm_template_path: template of the job script; None for the one that comes with the framework.
        allow_dirty: submit although the repository has uncommitted changes, which no job will run.
    """

    def __init__(
        self,
        project_root: str | Path,
        config_dir: str | Path | None = None,
        slurm_template_path: str | Path | None = None,
        *,
        allow_dirty: bool = False,
    ) -> None:
        """Nothing is read or started before it is needed.

        Raises:
            ConfigurationError: project_root is not a folder.
        """
        self.project_root = Path(project_root).resolve()
        if not self.project_root.is_dir():
            raise ConfigurationError(f"project_root is {project_root}: no such folder")
        self.slurm_template_path = slurm_template_path
        self.allow_dirty = allow_dirty
        self._config_manager = ConfigurationManager(self.project_root, config_dir)
        self.config_dir = self._config_manager.config_dir

    def get_config_manager(self) -> ConfigurationManager:
        """Return the manager of the project's configurations."""
        return self._config_manager

    def get_slurm_launcher(
        self, *, output_dir: str | Path | None = None, patience_s: float = PATIENCE_S
    ) -> SLURMLauncher:
        """Return a launcher of the project's experiments.

        Args:
            output_dir: folder of all experiments; ``experiments`` in the project if absent.
            patience_s: how long to ask a Slurm that does not answer, in seconds.

        Raises:
            JobSubmissionError: the template cannot be read.
        """
        return self._launcher(output_dir, Outlooks(self.project_root), patience_s)

    def run_grid_search(
        self,
        parameter_grids: Sequence[ParameterGrid],
        base_config: Mapping[str, Any] | str | Path | None = None,
        base_config_path: str | Path | None = None,
        execution_mode: ExecutionMode = ExecutionMode.SLURM,
        output_dir: str | Path | None = None,
        max_concurrent_jobs: int | None = None,
        *,
        naming_strategy: NamingStrategy = NamingStrategy.HASH_BASED,
        force: bool = False,
    ) -> GridSearchResult:
        """Predict, run or submit every experiment of some grids.

        The same call again takes up only what is missing or failed.

        Args:
            parameter_grids: their experiments follow one another.
            base_config: what experiments have in common: keys and values, or a file. Either this or
                ``base_config_path``.
            base_config_path: the file.
            execution_mode: DRY_RUN prints what differs and what is predicted, and writes nothing; LOCAL runs the
                experiments here and waits for them; SLURM submits them.
            output_dir: folder of all experiments; ``experiments`` in the project if absent.
            max_concurrent_jobs: how many run at once. Slurm itself holds it; without it all do, in LOCAL one.
            naming_strategy: how experiments are named; a second call must use the same.
            force: submit also what is predicted not to fit into the GPU's memory.

        Raises:
            ConfigurationError: grids and base configuration do not make experiments; a ValueError.
            GitOperationError: there are uncommitted changes, which no job would run.
            SLURMError: Slurm did not answer.
        """
        experiments = self.grid_experiments(parameter_grids, base_config, base_config_path, naming_strategy)
        result = self.run_experiments(experiments, execution_mode, output_dir, max_concurrent_jobs, force=force)
        if result.mode is ExecutionMode.DRY_RUN:
            sys.stdout.write(f"{result.text()}\n")
        return result

    def run_experiments(
        self,
        experiments: Sequence[Experiment | ExperimentConfig],
        execution_mode: ExecutionMode = ExecutionMode.SLURM,
        output_dir: str | Path | None = None,
        max_concurrent_jobs: int | None = None,
        *,
        force: bool = False,
    ) -> GridSearchResult:
        """Predict, run or submit experiments; arguments and errors as ``run_grid_search``, but nothing is printed."""
        begin = time.monotonic()
        mode = ExecutionMode(execution_mode)
        own = [
            experiment if isinstance(experiment, Experiment) else Experiment(experiment, {}, "")
            for experiment in experiments
        ]
        outlooks = Outlooks(self.project_root)
        launcher = self._launcher(output_dir, outlooks)
        configs = [experiment.config for experiment in own]
        batch = launcher.submit_experiment_batch(configs, mode, max_concurrent_jobs, force=force)
        rows = _became(own, batch, outlooks)
        return GridSearchResult(mode, tuple(rows), launcher.output_dir, time.monotonic() - begin)

    def grid_experiments(
        self,
        parameter_grids: Sequence[ParameterGrid],
        base_config: Mapping[str, Any] | str | Path | None = None,
        base_config_path: str | Path | None = None,
        naming_strategy: NamingStrategy = NamingStrategy.HASH_BASED,
    ) -> list[Experiment]:
        """Return the experiments of some grids; arguments and errors as ``run_grid_search``."""
        if (base_config is None) == (base_config_path is None):
            raise ConfigurationError("give base_config or base_config_path: one of them, and not both")
        base = base_config_path if base_config is None else base_config
        assert base is not None
        search = ParameterGridSearch(self._config_manager.compose_configs(base))
        search.set_naming_strategy(naming_strategy)
        for grid in [parameter_grids] if isinstance(parameter_grids, ParameterGrid) else parameter_grids:
            search.add_grid(grid)
        return search.experiments()

    def _launcher(
        self, output_dir: str | Path | None, outlooks: Outlooks, patience_s: float = PATIENCE_S
    ) -> SLURMLauncher:
        return SLURMLauncher(
            self.slurm_template_path,
            self.project_root / EXPERIMENTS if output_dir is None else output_dir,
            self._git(),
            project_root=self.project_root,
            outlook=outlooks,
            allow_dirty=self.allow_dirty,
            patience_s=patience_s,
        )

    def _git(self) -> GitManager | None:
        """Return the git manager of the project's repository; None where it is in none."""
        try:
            manager = GitManager(self.project_root)
            manager.current_commit()
        except GitOperationError:
            return None
        return manager


def _became(
    experiments: Sequence[Experiment], batch: BatchSubmissionResult, outlooks: Outlooks
) -> list[GridExperiment]:
    """Return what became of every experiment of a batch."""
    outcomes: dict[str, Submission | FailedSubmission] = {}
    outcomes.update({outcome.experiment_name: outcome for outcome in batch.successful})
    outcomes.update({outcome.experiment_name: outcome for outcome in batch.failed})
    rows = []
    for config, differs, _ in experiments:
        outcome = outcomes[config.experiment_name]
        if isinstance(outcome, Submission):
            state, reason = _state(outcome, batch.mode), None
            is_new, folder = outcome.is_new, outcome.folder
        else:
            state = ExperimentState.FAILED if outcome.job_id else ExperimentState.REFUSED
            is_new, folder, reason = True, None, outcome.reason
        forecast = outlooks.forecast(config) if is_new else None
        if is_new and reason is None and batch.mode is not ExecutionMode.LOCAL:
            reason = outlooks.why_not(config)
        rows.append(GridExperiment(config, differs, state, is_new, folder, outcome.job_id, forecast, reason))
    return rows


def _state(outcome: Submission, mode: ExecutionMode) -> ExperimentState:
    if not outcome.is_new:
        return ExperimentState.COMPLETED if outcome.status is JobStatus.COMPLETED else ExperimentState.SUBMITTED
    new = {ExecutionMode.DRY_RUN: ExperimentState.PLANNED, ExecutionMode.LOCAL: ExperimentState.COMPLETED}
    return new.get(mode, ExperimentState.SUBMITTED)
