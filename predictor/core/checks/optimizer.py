"""Check the optimizer against adapters and offloading."""

from __future__ import annotations

from predictor.core.base.errors import ConfigError
from predictor.core.schema.sections import TrainingSection
from predictor.core.workload.run_choices import Optimizer


def check_optimizer(training: TrainingSection) -> None:
    """Refuse Muon where it is not modelled.

    Raises:
        ConfigError: adapters train, or states are in host memory.
    """
    if training.optimizer is not Optimizer.MUON:
        return
    for key in ("lora", "offload_optimizer", "offload_parameters"):
        if getattr(training, key):
            raise ConfigError(f"training.optimizer is muon with training.{key}, which is not modelled; use adam")
