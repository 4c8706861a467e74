"""What a run says while it trains: a line every so many steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

log = logging.getLogger("llm_trainer.training")


class ConsoleLog:
    """Logs loss, learning rate and tokens per second, as means over the steps since the last line."""

    def __init__(self, every: int, tokens_per_step: int, num_steps: int) -> None:
        """Say how often, and of how long a run.

        Args:
            every: steps between two lines.
            tokens_per_step: of all ranks.
            num_steps: of the whole run.
        """
        self._every = every
        self._tokens_per_step = tokens_per_step
        self._num_steps = num_steps
        self._losses: list[float] = []
        self._seconds = 0.0

    @staticmethod
    def is_shown() -> bool:
        """Return whether anybody sees these lines."""
        return log.isEnabledFor(logging.INFO)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take a step's or a validation's numbers."""
        if "train/loss" not in values:
            log.info("step %d: %s", step, "  ".join(f"{name} {value:.4f}" for name, value in values.items()))
            return
        if not math.isfinite(values["train/loss"]) and all(map(math.isfinite, self._losses)):
            log.warning("step %d: the loss is %s; lower learning_rate or max_grad_norm", step, values["train/loss"])
        self._losses.append(values["train/loss"])
        self._seconds += values["train/step_time_s"]
        if step % self._every and step != self._num_steps:
            return
        tokens_per_second = self._tokens_per_step * len(self._losses) / self._seconds if self._seconds else math.nan
        log.info(
            "step %d of %d: loss %.4f  learning rate %.3g  %s tokens/s",
            step,
            self._num_steps,
            sum(self._losses) / len(self._losses),
            values["train/lr"],
            f"{tokens_per_second:,.0f}",
        )
        self._losses, self._seconds = [], 0.0

    def close(self) -> None:
        """Leave what is not logged: it is in steps.jsonl."""
