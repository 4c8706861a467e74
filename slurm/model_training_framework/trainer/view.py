"""View of a trainer for callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.state import ResumeState


class TrainerView(Protocol):
    """The trainer, as callbacks use it.

    Attributes:
        config: its settings.
        state: where the run stands.
        fabric: the engine: devices, ranks, precision.
        model: as set up for the devices; ``module`` is the one given to ``fit``.
        optimizer, scheduler: as in use.
        metrics: of the last validation.
    """

    config: GenericTrainerConfig
    state: ResumeState
    fabric: Any
    model: Any
    module: Any
    optimizer: Any
    scheduler: Any
    metrics: dict[str, float]

    def stop(self) -> None:
        """End training after this step; call it on every rank."""

    def save_checkpoint(self, emergency: bool = False) -> Path:
        """Save a checkpoint; call it on every rank."""
