"""Callbacks: user code at the joints of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from model_training_framework.trainer.errors import CheckpointError
from model_training_framework.trainer.state import TrainerPhase
from model_training_framework.trainer.view import TrainerView


class TrainingCallback:
    """Base class; override what is needed. Hooks run on every rank, in the order in which callbacks were added.

    A batch is what the loader gives; one optimizer step takes ``gradient_accumulation_steps`` of them. ``state_dict``
    and ``load_state_dict`` carry a callback's own state through a checkpoint; a hook that was called before a
    checkpoint is not called again by the run that resumes from it, except ``on_training_start``.
    """

    def on_training_start(self, trainer: TrainerView) -> None:
        """Called at the start of training, also when resumed."""

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Called at the end of training."""

    def on_epoch_start(self, trainer: TrainerView, epoch: int) -> None:
        """Called at the start of each epoch."""

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        """Called at the end of each epoch."""

    def on_batch_fetch(self, trainer: TrainerView) -> None:
        """Called before a batch is taken from the loader."""

    def on_batch_fetched(self, trainer: TrainerView, batch: Any) -> None:
        """Called with each batch as the loader gave it, before ``on_batch_start``."""

    def on_batch_start(self, trainer: TrainerView, batch_idx: int) -> None:
        """Called at the start of each batch."""

    def on_batch_end(self, trainer: TrainerView, batch_idx: int, logs: dict[str, Any]) -> None:
        """Called at the end of each batch; ``logs`` has this rank's loss."""

    def on_phase(self, trainer: TrainerView, phase: TrainerPhase) -> None:
        """Called when a phase of a batch begins."""

    def on_before_backward(self, trainer: TrainerView, loss: Any) -> None:
        """Called with a batch's loss before its backward pass."""

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Called after each optimizer step."""

    def on_validation_end(self, trainer: TrainerView, metrics: dict[str, float]) -> None:
        """Called after each validation with its metrics over all ranks."""

    def on_checkpoint(self, trainer: TrainerView, global_step: int) -> None:
        """Called before a checkpoint is written."""

    def on_checkpoint_end(self, trainer: TrainerView, global_step: int) -> None:
        """Called after a checkpoint was written, or could not be."""

    def on_failure(self, trainer: TrainerView, error: BaseException) -> None:
        """Called when an error or a preemption (SystemExit) ends training, in place of ``on_training_end``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it: tensors, numbers, text and containers of them."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""


class CallbackList:
    """Callbacks in order; a hook that nobody overrides costs nothing."""

    def __init__(self) -> None:
        """Begin with none."""
        self._callbacks: list[TrainingCallback] = []
        self._hooks: dict[str, list[Callable[..., None]]] = {}

    def add(self, callback: TrainingCallback) -> None:
        """Append a callback."""
        self._callbacks.append(callback)
        self._hooks.clear()

    def __iter__(self) -> Iterator[TrainingCallback]:
        """Yield them in order."""
        return iter(self._callbacks)

    def overriding(self, hook: str) -> list[Callable[..., None]]:
        """Return the methods that stand for a hook."""
        if hook not in self._hooks:
            methods = (getattr(callback, hook) for callback in self._callbacks)
            base = getattr(TrainingCallback, hook)
            self._hooks[hook] = [method for method in methods if getattr(method, "__func__", method) is not base]
        return self._hooks[hook]

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook."""
        for method in self.overriding(hook):
            method(*args)

    def state_dict(self) -> dict[str, Any]:
        """Return every callback's state, by position and class."""
        return {
            f"{i} {type(callback).__qualname__}": callback.state_dict() for i, callback in enumerate(self._callbacks)
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Hand every callback its state.

        Raises:
            CheckpointError: a callback that had a state is not here any more.
        """
        mine = {f"{i} {type(callback).__qualname__}": callback for i, callback in enumerate(self._callbacks)}
        lost = [name for name, state in states.items() if state and name not in mine]
        if lost:
            raise CheckpointError(
                f"callbacks: the checkpoint has the state of {', '.join(lost)}, this run has "
                f"{', '.join(mine) or 'none'}; add the same callbacks in the same order"
            )
        for name, callback in mine.items():
            if states.get(name):
                callback.load_state_dict(states[name])
