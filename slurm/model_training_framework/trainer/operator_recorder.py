"""Time steps as StepRecorder does, then profile some more and record every operator of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_training_framework.trainer.operator_times import BACKWARD, FORWARD
from model_training_framework.trainer.step_profiler import StepProfiler
from model_training_framework.trainer.step_recorder import StepRecorder
from model_training_framework.trainer.view import TrainerView
from predictor.core.timeline.spans import Span
from predictor.replay.files.measured_step import StepProvenance


class OperatorRecorder(StepRecorder):
    """Records timed steps, and the operators and collectives of profiled steps after them."""

    def __init__(
        self,
        steps: int,
        warm_up: int,
        profiled: int,
        facts: dict[str, Any],
        is_last_stage: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Say how many steps are let go, timed and profiled.

        Args:
            steps: timed.
            warm_up: let go before.
            profiled: behind the timed ones; one more between is let go.
            facts: fields of StepProvenance that the trainer does not know: pipeline_stage, threads, driver.
            names: the predictor's names of the model's operators, where they differ.
            is_last_stage: this rank's messages to its neighbours are gradients.
        """
        super().__init__(steps, warm_up)
        self._facts = facts
        self._held: tuple[list[Span], StepProvenance] | None = None
        self._profiler = StepProfiler(profiled, sends=BACKWARD if is_last_stage else FORWARD, names=names)
        self.num_steps = warm_up + steps + self._profiler.num_steps

    def on_training_start(self, trainer: TrainerView) -> None:
        """Choose the clocks."""
        super().on_training_start(trainer)
        self._profiler.is_gpu = trainer.fabric.device.type == "cuda"

    def complete(self, trainer: TrainerView) -> None:
        """Keep the record of the timed steps until the profiled ones are there too."""
        spans, provenance = self.record(trainer)
        provenance = provenance.model_copy(update=self._facts)
        if not self._profiler.num_steps:
            self.write(trainer, spans, provenance)
            return
        self._held = spans, provenance

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Take a timed step's marks, or a profiled step's operators."""
        if self._profiler.is_open:
            self._profiler.stop()
        if self._held is None:
            super().on_step_end(trainer, global_step)
        if self._held is not None and self.path is None:
            if self._profiler.is_done:
                self.write(trainer, *self._profiler.added(*self._held))
            else:
                self._profiler.start()

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Write what there is, where training ended early."""
        super().on_training_end(trainer, logs)
        self._profiler.close()
        if self._held is not None and self.path is None:
            self.write(trainer, *self._held)
