"""Telemetry of Hugging Face's Trainer: ``Trainer(..., callbacks=[HealthCallback()])``.

Writes health/rank-00000.jsonl below ``output_dir`` (see ``health.recorder``); ``predictor watch output_dir`` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from model_training_framework.health.recorder import Recorder
from predictor.watch.events import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, OPTIMIZER


class HealthCallback(TrainerCallback):  # type: ignore[misc]
    """Writes a line per optimizer step and rank."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Open the file, and see the model's forward passes."""
        self._recorder = Recorder(Path(args.output_dir), args.process_index, args.world_size, args.device)
        self._recorder.start("transformers", state.global_step or None, state.max_steps)
        self._loss: Any = None
        model, self._hooks = given["model"], []
        if not args.torch_compile:  # a compiled model would break its graph at a hook
            self._hooks.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._hooks.append(model.register_forward_hook(self._after_forward))
        self._recorder.enter(DATA)

    def _before_forward(self, model: Any, _given: Any, named: dict[str, Any]) -> None:
        if model.training:
            self._recorder.count(named)
            self._recorder.enter(FORWARD)

    def _after_forward(self, model: Any, _given: Any, output: Any) -> None:
        if model.training:
            self._loss = getattr(output, "loss", None)
            self._recorder.expect_backward(self._loss)
            self._recorder.enter(BACKWARD)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that data is there."""
        self._recorder.enter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that the optimizer begins."""
        self._recorder.enter(OPTIMIZER)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that the optimizer ended."""
        self._recorder.enter()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that a batch ended that is not the last of its step."""
        self._recorder.enter(DATA)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the step; data is loaded next."""
        loss = self._loss.detach() if self._loss is not None else None
        self._recorder.step(state.global_step, loss=loss)
        self._recorder.enter(DATA)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note how long the evaluation took."""
        self._recorder.outside(EVALUATION, state.global_step)
        self._recorder.enter(DATA)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note how long the checkpoint took."""
        self._recorder.outside(CHECKPOINT, state.global_step)
        self._recorder.enter(DATA)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the file."""
        for hook in self._hooks:
            hook.remove()
        self._recorder.end("COMPLETED")
