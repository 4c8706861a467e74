"""How experiments are executed, and what became of every experiment of a grid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from model_training_framework.config.experiment import ExperimentConfig


class ExecutionMode(StrEnum):
    """How experiments are executed."""

    SLURM = "slurm"
    LOCAL = "local"
    DRY_RUN = "dry_run"


class ExperimentState(StrEnum):
    """What became of one experiment of a grid.

    PLANNED: shown only (DRY_RUN). SUBMITTED: Slurm has it, from this call or an earlier one. COMPLETED: its command
    ended with 0, now or before. FAILED: its command ended with something else. REFUSED: not submitted, as it cannot
    run.
    """

    PLANNED = "planned"
    SUBMITTED = "submitted"
    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"


class Forecast(Protocol):
    """What was predicted of an experiment."""

    def text(self) -> str:
        """Return it in a line."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""


@dataclass(frozen=True, slots=True)
class GridExperiment:
    """One experiment of a grid and what became of it.

    Attributes:
        config: the whole configuration.
        differs: dotted keys and values in which it differs from the base configuration.
        state: what became of it.
        is_new: this call submitted or ran it; an earlier call did otherwise.
        folder: where its files are.
        job_id: of its Slurm job, with the index of an array as ``12_3``.
        forecast: what was predicted; None where nothing was asked.
        reason: why it failed or was refused, in a line.
    """

    config: ExperimentConfig
    differs: dict[str, Any]
    state: ExperimentState
    is_new: bool = True
    folder: Path | None = None
    job_id: str | None = None
    forecast: Forecast | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self.config.experiment_name

    def text(self) -> str:
        """Return name, differences, state and prediction in a line."""
        differs = ", ".join(f"{key}={value}" for key, value in self.differs.items())
        parts = [f"{self.name}: {self.state}" + (f" as job {self.job_id}" if self.job_id else ""), differs]
        parts += [self.forecast.text() if self.forecast else "", self.reason or ""]
        return "; ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the configuration as JSON holds it."""
        return {
            "experiment_name": self.name,
            "state": str(self.state),
            "is_new": self.is_new,
            "differs": self.differs,
            "folder": None if self.folder is None else str(self.folder),
            "job_id": self.job_id,
            "prediction": None if self.forecast is None else self.forecast.to_dict(),
            "reason": self.reason,
        }


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
        """Return a line for every experiment, and one that counts them by state."""
        counts = Counter(str(experiment.state) for experiment in self.experiments)
        total = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no experiments"
        return "\n".join([*(experiment.text() for experiment in self.experiments), total])

    def __str__(self) -> str:
        """Return the lines."""
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON holds it."""
        return {
            "mode": str(self.mode),
            "output_dir": None if self.output_dir is None else str(self.output_dir),
            "seconds": self.seconds,
            "experiments": [experiment.to_dict() for experiment in self.experiments],
        }
