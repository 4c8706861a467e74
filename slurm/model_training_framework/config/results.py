"""Execution modes of a grid, and outcomes of its experiments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from model_training_framework.config.experiment import ExperimentConfig
from model_training_framework.config.grid_experiment import ExperimentState, GridExperiment
from model_training_framework.config.result_table import table


class ExecutionMode(StrEnum):
    """How experiments are executed."""

    SLURM = "slurm"
    LOCAL = "local"
    DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True)
class GridSearchResult:
    """What became of all experiments of a grid search, in the grid's order.

    Attributes:
        mode: how they were executed.
        experiments: all of them.
        output_dir: folder that holds theirs.
        seconds: what the call took.
    """

    mode: ExecutionMode
    experiments: tuple[GridExperiment, ...] = field(default_factory=tuple)
    output_dir: Path | None = None
    seconds: float = 0.0

    def in_state(self, state: ExperimentState) -> tuple[GridExperiment, ...]:
        """Return the experiments of which this became."""
        return tuple(experiment for experiment in self.experiments if experiment.state == state)

    @property
    def total_experiments(self) -> int:
        """Return how many experiments the grids make."""
        return len(self.experiments)

    @property
    def generated_experiments(self) -> list[ExperimentConfig]:
        """Return the configurations of all experiments."""
        return [experiment.config for experiment in self.experiments]

    @property
    def submitted_jobs(self) -> list[str]:
        """Return the job ids of what this call submitted."""
        return [experiment.job_id for experiment in self.experiments if experiment.is_new and experiment.job_id]

    @property
    def failed_submissions(self) -> tuple[GridExperiment, ...]:
        """Return the experiments that were refused or failed."""
        bad = (ExperimentState.REFUSED, ExperimentState.FAILED)
        return tuple(experiment for experiment in self.experiments if experiment.state in bad)

    @property
    def success_rate(self) -> float:
        """Return the share of experiments that neither failed nor were refused; 1 where there is none."""
        return 1.0 - len(self.failed_submissions) / max(len(self.experiments), 1)

    def text(self) -> str:
        """Return a table: a row for every experiment, reasons below it, and the count by state."""
        return table(self.experiments)

    def __str__(self) -> str:
        """Return the table."""
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON holds it."""
        return {
            "mode": str(self.mode),
            "output_dir": None if self.output_dir is None else str(self.output_dir),
            "seconds": self.seconds,
            "experiments": [experiment.to_dict() for experiment in self.experiments],
        }
