"""Training of a language model: ``Trainer``, and beneath it the engine that resumes bit by bit."""

from llm_trainer.training.optimizer import create_optimizer
from llm_trainer.training.scheduler import create_scheduler

__all__ = ["create_optimizer", "create_scheduler"]
