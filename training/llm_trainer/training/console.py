"""Logs of a run: a console line every so many steps, steps.csv, and the outcome at its end."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from model_training_framework.trainer import TrainingCallback
from predictor.core.base.files import write_whole

HEADER = ["step", "name", "value"]
log = logging.getLogger("llm_trainer.training")


class CsvLog:
    """Rows appended to a file; those of steps that are taken again replace the earlier ones."""

    def __init__(self, path: Path) -> None:
        """Say where the file is or will be."""
        self._path = path
        self._stream: TextIO | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a row for every number of a step."""
        if self._stream is None:
            self._stream = self._open(step, values)
        csv.writer(self._stream).writerows([step, name, value] for name, value in values.items())
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self, step: int, values: Mapping[str, float]) -> TextIO:
        kept: list[list[str]] = []
        if self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as stream:
                rows = [row for row in csv.reader(stream) if len(row) == len(HEADER) and row != HEADER]
            rows = [row for row in rows if row[0].isdigit()]
            kept = [row for row in rows if int(row[0]) < step or (int(row[0]) == step and row[1] not in values)]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([HEADER, *kept])
        write_whole(self._path, text.getvalue())
        return self._path.open("a", newline="", encoding="utf-8")


class Outcome(TrainingCallback):
    """Keeps the mean loss of the last epoch, over resumes too."""

    def __init__(self) -> None:
        """Begin with none."""
        self.losses: dict[str, float] = {}

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        """Take the epoch's mean."""
        if "train_loss" in logs:
            self.losses = {"train_loss": float(logs["train_loss"])}

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        return dict(self.losses)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint has."""
        self.losses = dict(state)


def metrics_of(val_loss: float) -> dict[str, float]:
    """Return a validation's loss in nats per token, and its perplexity.

    >>> metrics_of(0.0)
    {'val_loss': 0.0, 'val_perplexity': 1.0}
    """
    return {"val_loss": val_loss, "val_perplexity": math.exp(min(val_loss, 700.0))}


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
