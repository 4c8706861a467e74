"""A job's time limit: upper bound of its prediction, and margins for unpredicted parts."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from model_training_framework.config import ConfigurationError, ExperimentConfig
from model_training_framework.prediction.experiment import ExperimentPrediction

SECONDS_PER_HOUR = 3600.0
SECONDS_PER_MINUTE = 60
# A checkpoint holds fp32 weights and Adam's two moments, 4 bytes each.
CHECKPOINT_BYTES_PER_PARAMETER = 12


@dataclass(frozen=True, slots=True)
class Margins:
    """What is added to the predicted steps. Assumed, not measured: a project that knows better passes its own.

    Attributes:
        start_up_s: container, modules, imports, process groups and the first batch.
        share: of the steps' time: data that is late, validation, logging.
        checkpoint_gb_per_s: rate at which one checkpoint is written, GB/s (1 GB = 1e9 bytes).
    """

    start_up_s: float = 600.0
    share: float = 0.15
    checkpoint_gb_per_s: float = 0.5

    def __post_init__(self) -> None:
        """Check that margins add something and that checkpoints end."""
        if self.start_up_s < 0 or self.share < 0 or self.checkpoint_gb_per_s <= 0:
            raise ConfigurationError(f"margins are {self}; expected at least 0, and a rate above 0")


@dataclass(frozen=True, slots=True)
class LimitPart:
    """A part of a time limit: seconds, and what they are for."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A time limit and what it is made of."""

    parts: tuple[LimitPart, ...]

    @property
    def seconds(self) -> int:
        """Return the whole limit, rounded up to a minute, which is what Slurm counts in."""
        total = sum(part.seconds for part in self.parts)
        return ceil(total / SECONDS_PER_MINUTE) * SECONDS_PER_MINUTE

    def text(self) -> str:
        """Return the limit and its parts in a line."""
        parts = " + ".join(f"{part.seconds:,.0f} s {part.reason}" for part in self.parts)
        return f"{self.seconds:,} s = {parts}"


DEFAULT_MARGINS = Margins()


def num_checkpoints(config: ExperimentConfig, steps: int) -> int:
    """Return how many checkpoints so many steps write at most: those of epochs, those of steps, and the last."""
    checkpoint, epochs = config.checkpoint, config.training.epochs or 1
    by_epoch = 0 if checkpoint.save_every_n_epochs is None else epochs // checkpoint.save_every_n_epochs
    by_step = 0 if checkpoint.save_every_n_steps is None else steps // checkpoint.save_every_n_steps
    return min(by_epoch, steps) + by_step + 1


def time_limit(
    config: ExperimentConfig, prediction: ExperimentPrediction, margins: Margins = DEFAULT_MARGINS
) -> TimeLimit:
    """Return the time that a run needs at most, as far as predicted: for ``slurm.time_limit: auto``.

    The upper end of the 90 % interval of a step times the number of steps, and margins. The seconds between Slurm's
    signal and the end of a job (preemption.grace_period_seconds) are the launcher's to add.

    Args:
        config: the experiment.
        prediction: of it.
        margins: what to add.

    Raises:
        ConfigurationError: the number of steps is not known.
    """
    if prediction.steps is None or prediction.high_hours is None:
        raise ConfigurationError(
            f"experiment {config.experiment_name} has no known number of steps for time_limit: auto; set "
            "training.max_steps, or data.num_samples beside epochs"
        )
    steps_s = prediction.high_hours * SECONDS_PER_HOUR
    count = num_checkpoints(config, prediction.steps)
    size_gb = prediction.parameters * CHECKPOINT_BYTES_PER_PARAMETER / 1e9
    parts = (
        LimitPart(steps_s, f"for {prediction.steps:,} steps at the upper end of the 90 % interval"),
        LimitPart(margins.share * steps_s, f"for late data, validation and logging ({margins.share:.0%}, assumed)"),
        LimitPart(margins.start_up_s, "to start (assumed)"),
        LimitPart(
            count * size_gb / margins.checkpoint_gb_per_s,
            f"for {count:,} checkpoints of {size_gb:.3g} GB at {margins.checkpoint_gb_per_s:g} GB/s (assumed)",
        ),
    )
    return TimeLimit(parts)


def time_limit_s(config: ExperimentConfig, prediction: ExperimentPrediction, margins: Margins = DEFAULT_MARGINS) -> int:
    """Return the seconds of ``time_limit``; arguments and errors as there."""
    return time_limit(config, prediction, margins).seconds
