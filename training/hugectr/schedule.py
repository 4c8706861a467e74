"""The learning rate of every step."""

from __future__ import annotations

from pathlib import Path

from hugectr.exceptions import HugeCtrError
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.recommender.hugectr.reading import HugeCtrConfig, read_hugectr
from predictor.recommender.workload.optimizer import Schedule


class LearningRateScheduler:
    """Counts steps and gives their learning rates: of SGD by its schedule, of all others the configuration's."""

    def __init__(self, schedule: Schedule) -> None:
        """Begin before the first step."""
        self._schedule = schedule
        self._step = 0

    def get_next(self) -> float:
        """Return the learning rate of the next step."""
        self._step += 1
        return self._schedule.rate(self._step)

    def get_lr(self) -> float:
        """Return the learning rate of the step that ``get_next`` was called for last; before, of the first."""
        return self._schedule.rate(max(self._step, 1))

    def get_step(self) -> int:
        """Return how often ``get_next`` was called."""
        return self._step


def read_configuration(path: str | Path) -> HugeCtrConfig:
    """Read a configuration for training.

    Raises:
        HugeCtrError: it is missing, not allowed, or without an optimizer; the message is one line.
    """
    try:
        config = read_hugectr(Path(path))
    except (FileNotFoundError, ConfigError, MissingKeyError) as error:
        raise HugeCtrError(str(error)) from None
    if config.model.optimizer is None or config.model.loss is None:
        raise HugeCtrError(f"{path}: a configuration for training has an optimizer and a loss")
    return config


def get_learning_rate_scheduler(configure_file: str) -> LearningRateScheduler:
    """Return the scheduler of a configuration's optimizer.

    Raises:
        HugeCtrError: the configuration cannot be read.
    """
    optimizer = read_configuration(configure_file).model.optimizer
    assert optimizer is not None
    return LearningRateScheduler(optimizer.schedule)
