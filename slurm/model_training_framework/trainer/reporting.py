"""Reports of steps: losses stay on the device until some are written together."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, TextIO

import torch

from model_training_framework.trainer.config import GenericTrainerConfig
from model_training_framework.trainer.loggers import ScalarLogger, TensorBoardLogger, WandbLogger
from model_training_framework.trainer.ranks import Ranks
from model_training_framework.trainer.state import ResumeState, TrainMicroState
from model_training_framework.trainer.step_log import StepLog

WIDTH = 24
LEAST_INTERVAL_S = 0.1


class ProgressBar:
    """One line on stderr that is written over; nothing where that is no terminal."""

    def __init__(self, is_wanted: bool, stream: TextIO | None = None) -> None:
        """Say whether a bar is wanted."""
        self._stream = stream or sys.stderr
        self.is_shown = is_wanted and self._stream.isatty()
        self._next = 0.0

    def show(self, done: int, total: int | None, text: str) -> None:
        """Show how far it is, at most ten times a second."""
        now = time.monotonic()
        if not self.is_shown or now < self._next:
            return
        self._next = now + LEAST_INTERVAL_S
        share = f"{done}/{total}" if total else str(done)
        filled = WIDTH * min(done, total) // total if total else 0
        bar = f"[{'#' * filled}{'.' * (WIDTH - filled)}] " if total else ""
        self._stream.write(f"\r{bar}step {share} {text}\x1b[K")
        self._stream.flush()

    def close(self) -> None:
        """Leave the line."""
        if self.is_shown and self._next:
            self._stream.write("\n")
            self._stream.flush()


LONGEST_SILENCE_S = 5.0


class _Step(NamedTuple):
    step: int
    epoch: int
    loss: Any
    lr: float
    step_time_s: float


class Reporter:
    """Rank 0 writes; all ranks call every method, as losses are means over ranks."""

    def __init__(self, config: GenericTrainerConfig, ranks: Ranks, loggers: Iterable[ScalarLogger] = ()) -> None:
        """Begin without files; ``open`` opens them, and gives rank 0's numbers to the given loggers too."""
        self._config = config
        self._ranks = ranks
        self._log = StepLog(config.steps_file)
        self._given = tuple(loggers)
        self._loggers: list[ScalarLogger] = []
        self._bar = ProgressBar(config.progress_bar and ranks.is_first)
        self._steps: list[_Step] = []
        self._written_at = time.monotonic()

    @property
    def lines(self) -> int:
        """Return how many lines are in the file."""
        return self._log.lines

    def open(self, state: ResumeState, keep_lines: int) -> None:
        """Open what is asked for, as it was when the state was saved.

        Raises:
            OSError: steps.jsonl cannot be written.
            TrainerError: a logger is not installed.
        """
        if not self._ranks.is_first:
            return
        config = self._config
        self._log.open(keep_lines)
        self._loggers += self._given
        if config.tensorboard:
            self._loggers.append(TensorBoardLogger(config.experiment_dir / "tensorboard", state.global_step + 1))
        if config.wandb is not None:
            self._loggers.append(WandbLogger(config.wandb, config.experiment_dir, config.description))

    def step(self, state: ResumeState, loss: Any, lr: float, step_time_s: float) -> None:
        """Note an optimizer step; the loss is this rank's, on its device."""
        self._steps.append(_Step(state.global_step, state.epoch, loss, lr, step_time_s))
        if self._bar.is_shown:
            self._bar.show(state.global_step, self._config.max_steps, f"epoch {state.epoch} loss {float(loss):.4g}")

    @property
    def is_waiting(self) -> bool:
        """Return whether steps are noted that should be written now."""
        steps = self._steps  # twice a step: said here in one piece
        return bool(steps) and (
            len(steps) >= self._config.log_every_n_steps or time.monotonic() - self._written_at > LONGEST_SILENCE_S
        )

    @property
    def is_full(self) -> bool:
        """Return whether enough steps are noted to write them."""
        return len(self._steps) >= self._config.log_every_n_steps

    @property
    def is_late(self) -> bool:
        """Return whether what is noted has waited for long; ranks may differ in it."""
        return bool(self._steps) and time.monotonic() - self._written_at > LONGEST_SILENCE_S

    def flush(self, train: TrainMicroState | None) -> None:
        """Write the steps noted, and add their losses to the epoch's; all ranks together."""
        if self._steps:
            losses = torch.stack([step.loss.reshape(()) for step in self._steps]).to("cpu", torch.float64)
            if self._ranks.world_size > 1:
                losses = self._ranks.sum(losses) / self._ranks.world_size
            for step, loss in zip(self._steps, losses.tolist(), strict=True):
                self._write(step._replace(loss=loss))
                if train is not None:
                    train.epoch_loss += loss
                    train.epoch_steps += 1
            self._steps.clear()
        self._written_at = time.monotonic()
        self._log.write()

    def _write(self, step: _Step) -> None:
        if not self._ranks.is_first:
            return
        self._log.add({"phase": "train", **step._asdict()})
        for logger in self._loggers:
            logger.log(step.step, {"train/loss": step.loss, "train/lr": step.lr, "train/step_time_s": step.step_time_s})

    def validation(self, state: ResumeState, metrics: dict[str, float], time_s: float) -> None:
        """Write a validation's metrics."""
        if not self._ranks.is_first:
            return
        step, epoch = state.global_step, state.epoch
        self._log.add({"phase": "validation", "step": step, "epoch": epoch, **metrics, "time_s": time_s})
        self._log.write()
        for logger in self._loggers:
            logger.log(step, metrics)

    def sync(self) -> None:
        """Make durable what is written."""
        self._log.sync()

    def close(self) -> None:
        """Close files."""
        self._bar.close()
        self._log.close()
        for logger in self._loggers:
            logger.close()
        self._loggers.clear()
