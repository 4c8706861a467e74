"""Record measured steps as spans with provenance, in the form of the predictor's timeline.

A record is a trace file (Trace Event Format, as ``predictor.core.timeline.trace`` writes and reads it) of the timed
step
that is nearest the median, whose ``otherData`` holds the raw samples of all timed steps and where they were measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_training_framework.trainer.callbacks import TrainingCallback
from model_training_framework.trainer.errors import TrainerError
from model_training_framework.trainer.state import TrainerPhase
from model_training_framework.trainer.step_timer import RunFacts, StepTimer
from model_training_framework.trainer.view import TrainerView
from predictor.core.timeline.spans import Span
from predictor.replay.files import measured_step
from predictor.replay.files.measured_step import (
    BACKWARD,
    DATA,
    FOLDER,
    FORWARD,
    OPTIMIZER,
    MeasuredSteps,
    StepProvenance,
    write_measured_steps,
)
from predictor.replay.files.record_model import RecordError


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Read what ``StepRecorder`` wrote.

    Raises:
        TrainerError: it is no such record.
    """
    try:
        return measured_step.read_measured_steps(path)
    except RecordError as error:
        raise TrainerError(str(error)) from error


class StepRecorder(TrainingCallback):
    """Times steps and writes a record for every rank to experiment_dir/step_records.

    On a GPU times come from its events, so that the host does not wait; they are read when the record is written.
    """

    def __init__(self, steps: int = 20, warm_up: int = 5) -> None:
        """Say how many steps are timed, and how many are let go before.

        Raises:
            TrainerError: a number is out of its range.
        """
        if steps < 1 or warm_up < 0:
            raise TrainerError(f"steps is {steps} and warm_up {warm_up}; they must be at least 1 and 0")
        self._steps = steps
        self._warm_up = warm_up
        self._let_go = 0
        self._first_step = 0
        self._timer = StepTimer()
        self.path: Path | None = None

    def on_training_start(self, trainer: TrainerView) -> None:
        """Choose the clock."""
        self._timer.is_gpu = trainer.fabric.device.type == "cuda"

    def _mark(self, part: str) -> None:
        """Note that a part begins."""
        if self.path is None:
            self._timer.mark(part)

    def on_phase(self, trainer: TrainerView, phase: TrainerPhase) -> None:
        """Note which part of a step begins."""
        if phase is TrainerPhase.TRAIN_BATCH_FORWARD:
            self._mark(FORWARD)
        elif phase is TrainerPhase.TRAIN_BATCH_BACKWARD:
            self._mark(BACKWARD)
        elif phase is TrainerPhase.TRAIN_BATCH_OPTIM_STEP:
            self._mark(OPTIMIZER)
        elif phase is TrainerPhase.TRAIN_BATCH_END and self._timer.marks and self._timer.marks[-1][0] != DATA:
            self._mark(DATA)
        elif phase in (TrainerPhase.VAL_START_EPOCH, TrainerPhase.EPOCH_END, TrainerPhase.TRAIN_START_EPOCH):
            self._timer.marks.clear()  # the next step begins with its forward pass, not with what is in between

    def on_checkpoint(self, trainer: TrainerView, global_step: int) -> None:
        """Leave the time of saving out."""
        self._timer.marks.clear()

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Take a step's marks; write the record with the last."""
        if self.path is not None:
            return
        self._mark(DATA)
        marks = self._timer.take()
        if self._let_go < self._warm_up:
            self._let_go += 1
            return
        # A resumed accumulation, or one that a loader's end cut short, is not a step like the others.
        if sum(part == FORWARD for part, _ in marks) != trainer.config.gradient_accumulation_steps:
            return
        self._first_step = self._first_step or global_step
        self._timer.keep(marks)
        if self._timer.num_timed == self._steps:
            self.complete(trainer)

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Write what there is, where training ended early."""
        if self.path is None and self._timer.num_timed:
            self.complete(trainer)

    def complete(self, trainer: TrainerView) -> None:
        """Write the record, once all steps are timed."""
        self.write(trainer, *self.record(trainer))

    def record(self, trainer: TrainerView) -> tuple[list[Span], StepProvenance]:
        """Return the spans of the step nearest the median, and the samples of all."""
        fabric, config = trainer.fabric, trainer.config
        facts = RunFacts(
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            device=fabric.device,
            num_micro_batches=config.gradient_accumulation_steps,
            precision=config.precision,
            strategy=type(fabric.strategy).__name__,
            description=config.description,
        )
        return self._timer.record(facts, self._first_step, self._warm_up)

    def write(self, trainer: TrainerView, spans: list[Span], provenance: StepProvenance) -> None:
        """Write a record to experiment_dir, and time no further steps.

        Raises:
            TrainerError: it cannot be written.
        """
        folder = trainer.config.experiment_dir
        try:
            self.path = write_measured_steps(folder, spans, provenance)
        except OSError as error:
            raise TrainerError(f"{folder / FOLDER} cannot be written: {error.strerror}") from error
