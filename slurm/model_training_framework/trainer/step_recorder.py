"""Record measured steps as spans with provenance, in the form of the predictor's timeline.

A record is a trace file (Trace Event Format, as ``predictor.timeline.trace`` writes and reads it) of the timed step
that is nearest the median, whose ``otherData`` holds the raw samples of all timed steps and where they were measured.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_training_framework.trainer.callbacks import TrainingCallback
from model_training_framework.trainer.errors import TrainerError
from model_training_framework.trainer.provenance import commit, config_hash, device_name, library_versions
from model_training_framework.trainer.state import TrainerPhase
from model_training_framework.trainer.view import TrainerView
from predictor.base.files import write_whole
from predictor.timeline.pipeline import Stream
from predictor.timeline.spans import Span
from predictor.timeline.trace import StepTrace, TraceError, read_spans, trace_events

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
PARTS = (DATA, FORWARD, BACKWARD, OPTIMIZER)
STREAMS = {DATA: "data loading", FORWARD: Stream.COMPUTE, BACKWARD: Stream.COMPUTE, OPTIMIZER: Stream.OPTIMIZER}
FOLDER = "step_records"


class StepProvenance(BaseModel):
    """What was measured, and where; times in microseconds, one for each timed step, in the order of measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str = Field(default="model-training-framework/measured-step/1", pattern="measured-step/1$")
    title: str
    step_us: float = Field(description="median over the timed steps, waiting for data included")
    samples_us: tuple[float, ...] = Field(min_length=1)
    parts_us: dict[str, tuple[float, ...]] = Field(description="data, forward, backward, optimizer of every sample")
    first_step: int = Field(description="number of the first timed step")
    warm_up: int = Field(description="steps before it in this process that were not timed")
    rank: int
    world_size: int
    num_micro_batches: int
    precision: str
    strategy: str
    device: str
    device_kind: str
    host: str
    commit: str = Field(description="of the folder that the run was started in")
    versions: dict[str, str]
    configuration: dict[str, Any]
    config_hash: str
    finished: str = Field(description="UTC, ISO 8601")


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """A record: the spans of the step nearest the median, and where they come from."""

    spans: list[Span]
    provenance: StepProvenance


def read_measured_steps(path: Path) -> MeasuredSteps:
    """Read what ``StepRecorder`` wrote.

    Raises:
        TrainerError: it is no such record.
    """
    try:
        spans = read_spans(path)
        other = json.loads(path.read_bytes()).get("otherData")
        return MeasuredSteps(spans, StepProvenance.model_validate(other))
    except (TraceError, ValidationError) as error:
        raise TrainerError(f"{path} is no measured step: {str(error).splitlines()[0]}") from error


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
            self._write(trainer)

    def on_training_end(self, trainer: TrainerView, logs: dict[str, Any]) -> None:
        """Write what there is, where training ended early."""
        if self.path is None and self._timed:
            self._write(trainer)

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

    def _write(self, trainer: TrainerView) -> None:
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
        document = trace_events(StepTrace(provenance.title, step_us, steps[nearest]))
        document["otherData"] = provenance.model_dump()
        folder = config.experiment_dir / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / f"rank-{fabric.global_rank:05d}.json", json.dumps(document) + "\n")
        except OSError as error:
            raise TrainerError(f"{folder} cannot be written: {error.strerror}") from error
        self.path = folder / f"rank-{fabric.global_rank:05d}.json"
        self._timed.clear()
        self._marks.clear()
