"""Launch training runs on Slurm with their time, memory and cost known beforehand, and survive preemption.

Importing it loads no torch: only ``model_training_framework.trainer`` needs it.
"""

from model_training_framework.config import (
    ConfigurationError,
    ExecutionMode,
    ExperimentConfig,
    GridSearchResult,
    ParameterGrid,
    ParameterGridSearch,
)
from model_training_framework.core import ModelTrainingFramework

__all__ = [
    "ConfigurationError",
    "ExecutionMode",
    "ExperimentConfig",
    "GridSearchResult",
    "ModelTrainingFramework",
    "ParameterGrid",
    "ParameterGridSearch",
]
