"""Configurations of model, training and data: plain dataclasses that check themselves. Needs no torch."""

from llm_trainer.config.data_config import DataConfig
from llm_trainer.config.files import read_config
from llm_trainer.config.model_config import ModelConfig
from llm_trainer.config.training_config import TrainingConfig

__all__ = ["DataConfig", "ModelConfig", "TrainingConfig", "read_config"]
