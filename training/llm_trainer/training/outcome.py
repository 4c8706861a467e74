"""What a run says of itself at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from model_training_framework.trainer import TrainingCallback


class Outcome(TrainingCallback):
    """Keeps the mean loss of the last epoch, over resumes too."""

    def __init__(self) -> None:
        """Begin with none."""
        self.losses: dict[str, float] = {}

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        """Take the epoch's mean."""
        if "train_loss" in logs:
            self.losses = {"train_loss": float(logs["train_loss"])}

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return dict(self.losses)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has."""
        self.losses = dict(state)


def metrics_of(val_loss: float) -> dict[str, float]:
    """Return a validation's loss in nats per token, and its perplexity.

    >>> metrics_of(0.0)
    {'val_loss': 0.0, 'val_perplexity': 1.0}
    """
    return {"val_loss": val_loss, "val_perplexity": math.exp(min(val_loss, 700.0))}
