"""Choose the engine of a layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llm_trainer.config import TrainingConfig
from llm_trainer.training.engine import Engine


def make_engine(training_config: TrainingConfig, experiment_dir: str | Path = ".", **changes: Any) -> Engine:
    """Return the engine of a configuration's layout.

    Args:
        training_config: how to train; its tensor_parallel_size, pipeline_parallel_size and zero_stage decide.
        experiment_dir: folder of what is written.
        changes: fields of GenericTrainerConfig to replace.

    Raises:
        TrainingError: other processes were started than the configuration says.
        TrainerError: the devices, the precision or the strategy cannot be had.
    """
    if is_replicated(training_config):
        return Engine(training_config, experiment_dir, **changes)
    from llm_trainer.parallel import parallel_engine  # loads torch.distributed's parts, which one rank does not need

    return parallel_engine(training_config, experiment_dir, **changes)


def is_replicated(training_config: TrainingConfig) -> bool:
    """Return whether every rank holds and updates the whole model."""
    config = training_config
    return config.tensor_parallel_size == 1 and config.pipeline_parallel_size == 1 and config.zero_stage == 0
