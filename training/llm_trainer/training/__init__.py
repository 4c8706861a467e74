"""Training of a language model: ``Trainer``, and beneath it the engine that resumes bit by bit."""

from llm_trainer.training.optimizer import create_optimizer
from llm_trainer.training.scheduler import create_scheduler
from llm_trainer.training.trainer import Trainer

__all__ = ["Trainer", "create_optimizer", "create_scheduler"]
