"""Telemetry of the trainer's steps for ``predictor watch``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from model_training_framework.health.recorder import REST, Recorder, state_of
from model_training_framework.trainer.callbacks import TrainingCallback
from model_training_framework.trainer.snapshot import ddp_of
from model_training_framework.trainer.state import TrainerPhase
from model_training_framework.trainer.view import TrainerView
from predictor.watch.events import BACKWARD, CHECKPOINT, COMMUNICATION, DATA, EVALUATION, FORWARD, OPTIMIZER

PHASES = {
    TrainerPhase.TRAIN_BATCH_FORWARD: FORWARD,
    TrainerPhase.TRAIN_BATCH_BACKWARD: BACKWARD,
    TrainerPhase.TRAIN_BATCH_OPTIM_STEP: OPTIMIZER,
    TrainerPhase.TRAIN_BATCH_END: REST,
    TrainerPhase.VAL_START_EPOCH: REST,
}


class HealthCallback(TrainingCallback):
    """Writes experiment_dir/health/rank-00000.jsonl, a line per optimizer step; see ``health.recorder``.

    The slowest rank is the one with the least communication.
    """

    def __init__(self) -> None:
        """Begin without a file."""
        self._recorder: Recorder | None = None
        self._hooks: list[Any] = []
        self._waited_s = self._waiting_from_s = 0.0

    def on_training_start(self, trainer: TrainerView) -> None:
        """Open the file."""
        fabric, state, ranks = trainer.fabric, trainer.state, trainer.ranks
        self._recorder = Recorder(trainer.config.experiment_dir, ranks.rank, ranks.world_size, fabric.device)
        hosts = tuple(ranks.gather(socket.gethostname(), "name hosts"))
        self._recorder.start("model_training_framework", state.global_step or None, trainer.config.max_steps, hosts)
        if ranks.world_size > 1:
            self._mark_forward(self._recorder, ddp_of(trainer.model) or trainer.module, trainer.module)

    def _mark_forward(self, recorder: Recorder, outer: Any, inner: Any) -> None:
        """Have what DDP and FSDP do before a forward pass (broadcast of buffers, first all-gather) told apart.

        A compiled module would break its graph at a hook.
        """
        if getattr(inner, "_compiled_call_impl", None) is not None:
            return

        def entering(part: str) -> Callable[[Any, Any], None]:
            def hook(module: Any, _given: Any) -> None:
                if module.training:
                    recorder.enter(part)

            return hook

        self._hooks = [
            outer.register_forward_pre_hook(entering(COMMUNICATION), prepend=True),
            inner.register_forward_pre_hook(entering(FORWARD)),
        ]

    def on_batch_fetch(self, trainer: TrainerView) -> None:
        """Note that data is loaded."""
        if self._recorder is not None:
            self._waited_s += trainer.ranks.waited_s - self._waiting_from_s
            self._recorder.enter(DATA)

    def on_batch_fetched(self, trainer: TrainerView, batch: Any) -> None:
        """Count samples and tokens."""
        if self._recorder is not None:
            for part in batch if isinstance(batch, list) and batch and isinstance(batch[0], Mapping) else (batch,):
                self._recorder.count(part)

    def on_phase(self, trainer: TrainerView, phase: TrainerPhase) -> None:
        """Note which part of a step begins."""
        if self._recorder is None or phase not in PHASES:
            return
        self._recorder.enter(PHASES[phase])
        if phase is TrainerPhase.TRAIN_BATCH_END:
            self._waiting_from_s = trainer.ranks.waited_s

    def on_before_backward(self, trainer: TrainerView, loss: Any) -> None:
        """Have the end of this rank's gradients marked."""
        if self._recorder is not None:
            self._recorder.expect_backward(loss)

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Write the step."""
        if self._recorder is not None:
            self._recorder.step(global_step, trainer.num_data_ranks, trainer.last_loss, self._waited_s)
        self._waited_s, self._waiting_from_s = 0.0, trainer.ranks.waited_s

    def on_validation_end(self, trainer: TrainerView, metrics: dict[str, float]) -> None:
        """Note how long the validation took."""
        self._note_outside(trainer, EVALUATION)

    def on_checkpoint(self, trainer: TrainerView, global_step: int) -> None:
        """Note that a checkpoint begins."""
        if self._recorder is not None:
            self._recorder.enter()

    def on_checkpoint_end(self, trainer: TrainerView, global_step: int) -> None:
        """Note how long the checkpoint took."""
        self._note_outside(trainer, CHECKPOINT)

    def _note_outside(self, trainer: TrainerView, part: str) -> None:
        if self._recorder is not None:
            self._recorder.outside(part, trainer.state.global_step)
            self._waiting_from_s = trainer.ranks.waited_s

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Close the file."""
        self._end("COMPLETED")

    def on_failure(self, trainer: TrainerView, error: BaseException) -> None:
        """Close the file with the reason, in Slurm's words."""
        self._end(state_of(error))

    def _end(self, state: str) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._recorder is not None:
            self._recorder.end(state)
            self._recorder = None
