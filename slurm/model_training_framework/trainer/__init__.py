"""Training that survives preemption: a trainer on Lightning Fabric whose resume is exact."""

from __future__ import annotations

from model_training_framework.trainer.callbacks import TrainingCallback
from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    PreemptionTimeoutError,
    RunRefusedError,
    TrainerError,
)
from model_training_framework.trainer.preemption import EXIT_RESUMABLE
from model_training_framework.trainer.rng import RNGState
from model_training_framework.trainer.state import ResumeState, TrainerPhase, TrainMicroState, ValMicroState
from model_training_framework.trainer.step_recorder import StepRecorder, read_measured_steps
from model_training_framework.trainer.trainer import GenericTrainer
from predictor.replay.files.measured_step import MeasuredSteps

__all__ = [
    "EXIT_RESUMABLE",
    "CheckpointError",
    "CheckpointTimeoutError",
    "GenericTrainer",
    "GenericTrainerConfig",
    "MeasuredSteps",
    "PreemptionTimeoutError",
    "RNGState",
    "ResumeState",
    "RunRefusedError",
    "StepRecorder",
    "TrainMicroState",
    "TrainerError",
    "TrainerPhase",
    "TrainingCallback",
    "ValMicroState",
    "read_measured_steps",
]
