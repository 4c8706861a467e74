"""TensorBoard and Weights & Biases, imported where they are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from model_training_framework.trainer.errors import TrainerError


class ScalarLogger(Protocol):
    """Where numbers of a step go besides steps.jsonl."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoardLogger:
    """Event files for TensorBoard; those of steps that are taken again replace the earlier ones."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Begin, or go on at a step.

        Raises:
            TrainerError: tensorboard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise TrainerError(
                f"tensorboard is True, but it does not import ({error}); pip install tensorboard"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases, the same one when resumed."""

    def __init__(self, options: Mapping[str, Any], folder: Path, config: Mapping[str, Any]) -> None:
        """Begin or go on; offline where the options or WANDB_MODE say so.

        Raises:
            TrainerError: wandb is not installed.
        """
        try:
            import wandb
        except ImportError as error:
            raise TrainerError(
                f"wandb is asked for, but it does not import ({error}); pip install wandb, or use steps.jsonl"
            ) from None
        # A run of an experiment's folder keeps its identity over preemptions.
        identity = folder / "wandb-run-id"
        if not identity.is_file():
            identity.write_text(os.urandom(8).hex(), encoding="utf-8")
        given = {"id": identity.read_text(encoding="utf-8").strip(), "resume": "allow", "dir": str(folder)}
        self._run = wandb.init(**{**given, **options}, config=dict(config))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
