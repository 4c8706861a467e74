"""Telemetry of Lightning's Trainer: ``Trainer(..., callbacks=[HealthCallback()])``.

Writes health/rank-00000.jsonl below ``default_root_dir`` (see ``health.recorder``), which ``predictor watch`` reads.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_training_framework.health.recorder import REST, Recorder, state_of
from predictor.watch.events import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, OPTIMIZER

if TYPE_CHECKING:
    Callback: Any = object
elif find_spec("lightning") is not None:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback


class HealthCallback(Callback):  # type: ignore[misc]
    """Writes a line per optimizer step and rank."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Say where; None: the trainer's ``default_root_dir``."""
        self._folder = folder
        self._recorder: Recorder | None = None
        self._step = 0
        self._loss: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the file, and time checkpoints, whose end no hook tells."""
        folder = Path(self._folder if self._folder is not None else trainer.default_root_dir)
        self._step, target = trainer.global_step, trainer.estimated_stepping_batches
        self._recorder = Recorder(folder, trainer.global_rank, trainer.world_size, pl_module.device)
        self._recorder.start("lightning", self._step or None, int(target) if math.isfinite(target) else None)
        save = trainer.save_checkpoint

        def save_checkpoint(*given: Any, **named: Any) -> None:
            self._enter(REST)
            try:
                save(*given, **named)
            finally:
                self._note_outside(trainer, CHECKPOINT)

        trainer.save_checkpoint = save_checkpoint
        self._enter(DATA)

    def _enter(self, part: str) -> None:
        if self._recorder is not None:
            self._recorder.enter(part)

    def _note_outside(self, trainer: Any, part: str) -> None:
        if self._recorder is not None:
            self._recorder.outside(part, trainer.global_step)
            self._recorder.enter(DATA)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note that the forward pass begins."""
        if self._recorder is not None:
            self._recorder.count(batch)
            self._recorder.enter(FORWARD)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note that the backward pass begins."""
        if self._recorder is not None:
            self._loss = loss.detach()
            self._recorder.expect_backward(loss)
            self._recorder.enter(BACKWARD)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Note that the optimizer begins."""
        self._enter(OPTIMIZER)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the step, where one ended; data is loaded next."""
        if self._recorder is not None and trainer.global_step > self._step:
            self._step = trainer.global_step
            self._recorder.step(self._step, loss=self._loss)
        self._enter(DATA)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note that an evaluation begins."""
        self._enter(REST)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Note how long the evaluation took."""
        self._note_outside(trainer, EVALUATION)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the file."""
        self._end(trainer, "COMPLETED")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the file with the reason."""
        self._end(trainer, state_of(exception))

    def _end(self, trainer: Any, state: str) -> None:
        vars(trainer).pop("save_checkpoint", None)
        if self._recorder is not None:
            self._recorder.end(state)
            self._recorder = None
