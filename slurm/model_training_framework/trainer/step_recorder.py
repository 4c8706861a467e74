"""Record measured steps as spans with provenance, in the form of the predictor's timeline.

A record is a trace file (Trace Event Format, as ``predictor.timeline.trace`` writes and reads it) of the timed step
that is nearest the median, whose ``otherData`` holds the raw samples of all timed steps and where they were measured.
"""

from __future__ import annotations

import json
import socket
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from model_training_framework.trainer.callbacks import TrainingCallback
from model_training_framework.trainer.errors import TrainerError
from model_training_framework.trainer.provenance import commit, config_hash, device_name, library_versions
from model_training_framework.trainer.state import TrainerPhase
from model_training_framework.trainer.view import TrainerView
from predictor.timeline.pipeline import Stream
from predictor.timeline.spans import Span
from predictor.traces import measured_step
from predictor.traces.closed import RecordError
from predictor.traces.measured_step import (
    BACKWARD,
    DATA,
    FOLDER,
    FORWARD,
    OPTIMIZER,
    PARTS,
    MeasuredSteps,
    StepProvenance,
    write_measured_steps,
)

STREAMS = {DATA: "data loading", FORWARD: Stream.COMPUTE, BACKWARD: Stream.COMPUTE, OPTIMIZER: Stream.OPTIMIZER}


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
        self._marks: list[tuple[str, Any]] = []
        self._timed: list[list[tuple[str, Any]]] = []
        self._is_gpu = False
        self.path: Path | None = None

    def on_training_start(self, trainer: TrainerView) -> None:
        """Choose the clock."""
        self._is_gpu = trainer.fabric.device.type == "cuda"

    def _mark(self, part: str) -> None:
        """Note that a part begins."""
        if self.path is not None:
            return
        if self._is_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((part, event))
        else:
            self._marks.append((part, time.perf_counter_ns()))

    def on_phase(self, trainer: TrainerView, phase: TrainerPhase) -> None:
        """Note which part of a step begins."""
        if phase is TrainerPhase.TRAIN_BATCH_FORWARD:
            self._mark(FORWARD)
        elif phase is TrainerPhase.TRAIN_BATCH_BACKWARD:
            self._mark(BACKWARD)
        elif phase is TrainerPhase.TRAIN_BATCH_OPTIM_STEP:
            self._mark(OPTIMIZER)
        elif phase is TrainerPhase.TRAIN_BATCH_END and self._marks and self._marks[-1][0] != DATA:
            self._mark(DATA)
        elif phase in (TrainerPhase.VAL_START_EPOCH, TrainerPhase.EPOCH_END, TrainerPhase.TRAIN_START_EPOCH):
            self._marks.clear()  # the next step begins with its forward pass, not with what is in between

    def on_checkpoint(self, trainer: TrainerView, global_step: int) -> None:
        """Leave the time of saving out."""
        self._marks.clear()

    def on_step_end(self, trainer: TrainerView, global_step: int) -> None:
        """Take a step's marks; write the record with the last."""
        if self.path is not None:
            return
        self._mark(DATA)
        marks, self._marks = self._marks, self._marks[-1:]
        if self._let_go < self._warm_up:
            self._let_go += 1
            return
        # A resumed accumulation, or one that a loader's end cut short, is not a step like the others.
        if sum(part == FORWARD for part, _ in marks) != trainer.config.gradient_accumulation_steps:
            return
        self._first_step = self._first_step or global_step
        self._timed.append(marks)
        if len(self._timed) == self._steps:
            self.complete(trainer)

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Write what there is, where training ended early."""
        if self.path is None and self._timed:
            self.complete(trainer)

    def _us(self, begin: Any, end: Any) -> float:
        return 1e3 * float(begin.elapsed_time(end)) if self._is_gpu else (end - begin) / 1e3

    def _spans(self, marks: list[tuple[str, Any]], rank: int) -> list[Span]:
        """Return a step's parts."""
        start = marks[0][1]
        spans: list[Span] = []
        micro_batch = -1
        for (part, begin), (_, end) in pairwise(marks):
            micro_batch += part == FORWARD
            details = {"pass": part, "micro_batch": max(0, micro_batch + (part == DATA)), "chunk": 0}
            times = (self._us(start, begin), self._us(start, end))
            spans.append(Span(part, rank, STREAMS[part], *times, category=part, details=details))
        return spans

    def complete(self, trainer: TrainerView) -> None:
        """Write the record, once all steps are timed."""
        self.write(trainer, *self.record(trainer))

    def record(self, trainer: TrainerView) -> tuple[list[Span], StepProvenance]:
        """Return the spans of the step nearest the median, and the samples of all."""
        fabric, config = trainer.fabric, trainer.config
        if self._is_gpu:
            torch.cuda.synchronize()
        steps = [self._spans(marks, fabric.global_rank) for marks in self._timed]
        samples = [spans[-1].end_us for spans in steps]
        step_us = median(samples)
        nearest = min(range(len(steps)), key=lambda i: abs(samples[i] - step_us))
        text = json.dumps(config.description, sort_keys=True, default=str)
        provenance = StepProvenance(
            title=f"measured, rank {fabric.global_rank} of {fabric.world_size}",
            step_us=step_us,
            samples_us=tuple(samples),
            parts_us={
                part: tuple(sum(s.duration_us for s in spans if s.name == part) for spans in steps) for part in PARTS
            },
            first_step=self._first_step,
            warm_up=self._warm_up,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
            num_micro_batches=config.gradient_accumulation_steps,
            precision=config.precision,
            strategy=type(fabric.strategy).__name__,
            device=device_name(fabric.device),
            device_kind=fabric.device.type,
            host=socket.gethostname(),
            commit=commit(Path.cwd()),
            versions=library_versions(fabric.device),
            configuration=json.loads(text),
            config_hash=config_hash(text),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._timed.clear()
        self._marks.clear()
        return steps[nearest], provenance

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
