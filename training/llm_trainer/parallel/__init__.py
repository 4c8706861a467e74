"""Layouts of a training run over ranks, one file per axis: data (sharding), tensor and pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_trainer.config import TrainingConfig
    from llm_trainer.training.engine import Engine


def parallel_engine(training_config: TrainingConfig, experiment_dir: str | Path = ".", **changes: Any) -> Engine:
    """Return the engine of a layout whose ranks share a model's states or its computation.

    Raises:
        TrainingError: the layout does not fit the processes that were started, or torch has no engine for it.
        TrainerError: the devices or the precision cannot be had.
    """
    from llm_trainer.parallel.engine import ParallelEngine

    return ParallelEngine(training_config, experiment_dir, **changes)
