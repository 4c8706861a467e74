"""State of a run: phases, and the numbers from which it resumes as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from model_training_framework.trainer.rng import RNGState

STATE_VERSION = "v2.0"


class TrainerPhase(StrEnum):
    """What the trainer does next, or is doing."""

    INIT = "init"
    TRAIN_START_EPOCH = "train_start_epoch"
    TRAIN_BATCH_FORWARD = "train_batch_forward"
    TRAIN_BATCH_BACKWARD = "train_batch_backward"
    TRAIN_BATCH_OPTIM_STEP = "train_batch_optim_step"
    TRAIN_BATCH_END = "train_batch_end"
    VAL_START_EPOCH = "val_start_epoch"
    VAL_BATCH_FORWARD = "val_batch_forward"
    EPOCH_END = "epoch_end"
    TRAINING_COMPLETE = "training_complete"


@dataclass(slots=True)
class TrainMicroState:
    """Where training stands within an epoch.

    Attributes:
        batch_idx: batches of the epoch whose gradients are there.
        micro_step: of them, those since the last optimizer step.
        loss_sum: of those, this rank's, a tensor; None where there are none.
        is_exhausted: the epoch's last batch has been used.
        epoch_loss: sum of the losses of the epoch's optimizer steps.
        epoch_steps: their number.
        logs: scalars that the last batch's step returned, until callbacks have them.
    """

    batch_idx: int = 0
    micro_step: int = 0
    loss_sum: Any = None
    is_exhausted: bool = False
    epoch_loss: float = 0.0
    epoch_steps: int = 0
    logs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ValMicroState:
    """Where a validation stands.

    Attributes:
        batch_idx: batches that are in the sums.
        num_samples: samples in them, this rank's.
        sums: sum over samples of every metric, this rank's, fp64 tensors.
        ends_epoch: whether the epoch ends after it; otherwise training goes on in the middle.
        train_rng: random numbers as training left them.
    """

    batch_idx: int = 0
    num_samples: int = 0
    sums: dict[str, Any] = field(default_factory=dict)
    ends_epoch: bool = True
    train_rng: RNGState | None = None


@dataclass
class ResumeState:
    """All of a run's state but weights, optimizer, scheduler and callbacks.

    Attributes:
        phase: what comes next.
        epoch: from 0.
        global_step: optimizer steps done.
        version: of this form.
        train: position in the epoch.
        val: position in a validation; None outside.
        rng: this rank's random numbers; filled in a checkpoint.
        timestamp: when it was stored, seconds since 1970.
    """

    phase: TrainerPhase
    epoch: int
    global_step: int
    version: str = STATE_VERSION
    train: TrainMicroState | None = None
    val: ValMicroState | None = None
    rng: RNGState | None = None
    timestamp: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return it as tensors, numbers and text."""
        train = self.train and {name: getattr(self.train, name) for name in TrainMicroState.__slots__}
        val = self.val and {name: getattr(self.val, name) for name in ValMicroState.__slots__}
        if val and self.val and self.val.train_rng:
            val["train_rng"] = self.val.train_rng.state_dict()
        return {
            "phase": self.phase.value,
            "epoch": self.epoch,
            "global_step": self.global_step,
            "version": self.version,
            "train": train,
            "val": val,
            "rng": self.rng and self.rng.state_dict(),
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> ResumeState:
        """Return what ``state_dict`` gave.

        Raises:
            ValueError: it has another version.
        """
        if plain["version"] != STATE_VERSION:
            raise ValueError(f"version is {plain['version']}; this trainer reads {STATE_VERSION}")
        values = dict(plain)
        values["phase"] = TrainerPhase(values["phase"])
        values["train"] = values["train"] and TrainMicroState(**values["train"])
        if values["val"]:
            rng = values["val"]["train_rng"]
            values["val"] = ValMicroState(**{**values["val"], "train_rng": rng and RNGState.from_state_dict(rng)})
        values["rng"] = values["rng"] and RNGState.from_state_dict(values["rng"])
        return cls(**values)
