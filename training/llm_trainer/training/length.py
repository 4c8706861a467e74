"""Length of a run: batches of an epoch, optimizer steps, warm-up."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from llm_trainer.config import TrainingConfig
from llm_trainer.exceptions import TrainingError
from llm_trainer.training.scheduler import resolve_warmup_steps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunLength:
    """Counts of a run.

    Attributes:
        steps_per_epoch: optimizer steps; the last one of an epoch may have fewer micro-batches.
        num_steps: optimizer steps of the run, which ends at num_epochs or max_steps, whichever comes first.
        warmup_steps: of them.
        drop_last: leave out an epoch's last samples where they are no whole batch.
    """

    steps_per_epoch: int
    num_steps: int
    warmup_steps: int
    drop_last: bool


def run_length(config: TrainingConfig, num_samples: int, data_parallel_size: int) -> RunLength:
    """Return the length of a run.

    Every data-parallel rank gets as many samples as the others, some of them twice where the ranks do not divide
    them. Samples that are no whole batch are left out, in every epoch other ones, unless there is no whole batch.

    Args:
        config: of the training.
        num_samples: of the data set.
        data_parallel_size: ranks that share the samples out.

    Raises:
        TrainingError: there is no sample.
    """
    if not num_samples:
        raise TrainingError("train_dataset has no sample; give it more text, or lower max_length or min_length")
    samples_per_rank = math.ceil(num_samples / data_parallel_size)
    drop_last = samples_per_rank >= config.batch_size
    batches = samples_per_rank // config.batch_size if drop_last else 1
    steps_per_epoch = math.ceil(batches / config.gradient_accumulation_steps)
    num_steps = min(steps_per_epoch * config.num_epochs, config.max_steps or math.inf)
    warmup_steps = resolve_warmup_steps(config.warmup_steps, config.warmup_ratio, int(num_steps))
    return RunLength(steps_per_epoch, int(num_steps), warmup_steps, drop_last)


def warn_of_warmup(config: TrainingConfig, length: RunLength) -> None:
    """Say where the learning rate never reaches its peak."""
    if length.warmup_steps >= length.num_steps:
        reached = config.learning_rate * length.num_steps / (length.warmup_steps + 1)
        log.warning(
            "warmup_steps is %d; the run has %d steps, so learning_rate rises to %.3g of %.3g. "
            "Set warmup_steps to 0 for a warm-up of warmup_ratio, %g, of the run",
            length.warmup_steps,
            length.num_steps,
            reached,
            config.learning_rate,
            config.warmup_ratio,
        )
