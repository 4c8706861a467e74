"""One experiment of a grid, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from model_training_framework.config.experiment import ExperimentConfig


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

    def cells(self) -> dict[str, str]:
        """Return it as the cells of a row, by the titles of their columns."""

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
