"""Experiments: their configuration, grids of them, and files that hold them."""

from model_training_framework.config.errors import ConfigurationError, ValidationError
from model_training_framework.config.experiment import ExperimentConfig
from model_training_framework.config.grid import ParameterGrid
from model_training_framework.config.grid_experiment import ExperimentState, GridExperiment
from model_training_framework.config.manager import ConfigurationManager
from model_training_framework.config.naming import NamingStrategy
from model_training_framework.config.results import ExecutionMode, GridSearchResult
from model_training_framework.config.search import Experiment, ParameterGridSearch
from model_training_framework.config.sections import (
    CheckpointConfig,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    PerformanceConfig,
    PredictionConfig,
    PreemptionConfig,
    SchedulerConfig,
    SLURMConfig,
    TrainingConfig,
)

__all__ = [
    "CheckpointConfig",
    "ConfigurationError",
    "ConfigurationManager",
    "DataConfig",
    "ExecutionMode",
    "Experiment",
    "ExperimentConfig",
    "ExperimentState",
    "GridExperiment",
    "GridSearchResult",
    "LoggingConfig",
    "ModelConfig",
    "NamingStrategy",
    "OptimizerConfig",
    "ParameterGrid",
    "ParameterGridSearch",
    "PerformanceConfig",
    "PredictionConfig",
    "PreemptionConfig",
    "SLURMConfig",
    "SchedulerConfig",
    "TrainingConfig",
    "ValidationError",
]
