"""Checkpoint content of a trainer, and its restoration."""

from __future__ import annotations

import logging
from typing import Any

from model_training_framework.trainer import snapshot
from model_training_framework.trainer.checkpoint import Checkpointer, Snapshot
from model_training_framework.trainer.checkpoint_store import Stored
from model_training_framework.trainer.errors import CheckpointError
from model_training_framework.trainer.identity import Given, accepted_changes, changed_states
from model_training_framework.trainer.loop import TrainingLoop
from model_training_framework.trainer.rng import restore_rng
from model_training_framework.trainer.state import ResumeState, TrainerPhase

log = logging.getLogger(__name__)


class Resuming(TrainingLoop):
    """A training loop whose whole state is a value that can be stored and put back."""

    _checkpointer: Checkpointer | None
    _given: Given
    _identity: dict[str, Any]
    _last_saved: tuple[int, TrainerPhase] | None

    def state_dict(self) -> dict[str, Any]:
        """Return what a derived trainer wants kept in checkpoints, alike on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""

    def read_snapshot(self, stored: Stored) -> Snapshot:
        """Return what ``snapshot`` gave when a checkpoint was written; all ranks together."""
        assert self._checkpointer is not None
        return self._checkpointer.read(
            stored, lambda name: snapshot.zeros_like_weight(self.module, self.raw_optimizer, name)
        )

    @property
    def raw_optimizer(self) -> Any:
        """Return the optimizer that was given to ``fit``."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def snapshot(self) -> Snapshot:
        """Return everything that a checkpoint keeps."""
        shared = {
            "model": self.module.state_dict(),
            "optimizer": self.raw_optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "precision": self.fabric.strategy.precision.state_dict(),
            "trainer": self.state_dict(),
        }
        ddp = snapshot.ddp_of(self.model)
        own = {
            "resume": self.state.state_dict(),
            "gradients": snapshot.gradients_of(self.module) if self.train.micro_step else {},
            "buffers": snapshot.buffers_of(self.module) if self.ranks.world_size > 1 else {},
            "syncs_buffers": ddp.require_forward_param_sync if ddp is not None else None,
            "callbacks": self.callbacks.state_dict(),
            "metrics": self.metrics,
            "validated_step": self._validated_step,
            "is_stopping": self._is_stopping,
            "seed": self.seed,
            "identity": self._identity,
            "log_lines": self.ranks.from_first(self.reporter.lines, "count lines"),
        }
        return Snapshot(shared, own)

    def stored_identity(self, content: Snapshot) -> dict[str, Any] | None:
        """Return what decided the steps of a checkpoint's run; None where it does not say."""
        identity: dict[str, Any] | None = content.own.get("identity")
        return identity

    def _restore(self, stored: Stored, content: Snapshot) -> int:
        """Put a checkpoint's content in place, and return how many lines steps.jsonl had."""
        before, may_change = self.stored_identity(content), self.config.resume_changes
        changed = accepted_changes(stored.path, before, self._identity, may_change, self.ranks)
        shared, own = content.shared, content.own
        snapshot.load_weights(self.module, shared["model"])
        optimizer, schedule = changed_states(shared, self._given, changed, before or {})
        try:
            self.raw_optimizer.load_state_dict(optimizer)
        except ValueError as error:
            raise CheckpointError(f"{stored.path} is of another optimizer: {str(error).splitlines()[0]}") from error
        if self.scheduler is not None and schedule is not None:
            self.scheduler.load_state_dict(schedule)
        self.fabric.strategy.precision.load_state_dict(shared["precision"])
        self.load_state_dict(shared["trainer"])
        snapshot.put_gradients(self.module, own["gradients"])
        snapshot.put_buffers(self.module, own["buffers"])
        ddp = snapshot.ddp_of(self.model)
        if ddp is not None:
            ddp.require_forward_param_sync = own["syncs_buffers"]
        self.callbacks.load_state_dict(own["callbacks"])
        self.metrics, self._validated_step = dict(own["metrics"]), own["validated_step"]
        self._is_stopping = own["is_stopping"]
        self.state = ResumeState.from_state_dict(own["resume"])
        if self.state.rng is not None:
            restore_rng(self.state.rng)
            self.state.rng = None
        self._last_saved = (self.state.global_step, self.state.phase)
        if self.state.phase is TrainerPhase.TRAINING_COMPLETE and not self.is_done:  # limits were raised
            is_inside = self.train.batch_idx > 0
            self.state.phase = TrainerPhase.TRAIN_BATCH_FORWARD if is_inside else TrainerPhase.TRAIN_START_EPOCH
        if self.ranks.is_first:
            log.info("resumed from %s: epoch %d, step %d", stored.path, self.state.epoch, self.state.global_step)
        return int(own["log_lines"])
