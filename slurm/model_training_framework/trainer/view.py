"""View of a trainer for callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.ranks import Ranks
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
        last_loss: of the last optimizer step, this rank's, on its device.
        ranks: of the run; ``num_data_ranks`` of them share out the samples of a step.
    """

    config: GenericTrainerConfig
    state: ResumeState
    fabric: Any
    model: Any
    module: Any
    optimizer: Any
    scheduler: Any
    metrics: dict[str, float]
    last_loss: Any
    ranks: Ranks

    @property
    def num_data_ranks(self) -> int:
        """Return over how many ranks the samples of a step are shared out."""

    def stop(self) -> None:
        """End training after this step; call it on every rank."""

    def save_checkpoint(self, emergency: bool = False) -> Path:
        """Save a checkpoint; call it on every rank."""
