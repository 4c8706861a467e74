"""A traced step as a record on disk: durations of operators and collectives, for calibration.

A trace does not say what a run was configured to do, on which host or at which commit, which ``StepProvenance`` needs;
so this record has what a trace says. Every microsecond of the device counts once: to the innermost operator around it
that the predictor knows, or to the innermost one. Kernels that were launched in no operator have their own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from predictor.core.base.errors import ConfigError
from predictor.core.base.files import write_whole
from predictor.replay.breakdown import traffic_of
from predictor.replay.files.events import UNKNOWN
from predictor.replay.files.record_model import RecordModel
from predictor.replay.graph.local_graph import NO_OPERATOR, LocalGraph, OperatorPass, TracedOperator, TracedTask
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.whatif.known_operators import known_around, known_call, precision_of
from predictor.replay.whatif.traced_step import ADDED, TracedStep, pass_of

FORMAT: Literal["estimate-train-time/traced-step/1"] = "estimate-train-time/traced-step/1"
Times = Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]


class TracedOperatorTimes(RecordModel):
    """All calls of one operator with the same inputs in one pass of the step."""

    name: str = Field(min_length=1, description="as PyTorch's dispatcher or autograd names it; else the kernel's")
    operator: str | None = Field(description="the predictor's operator that it is; null: none")
    shape: tuple[int, ...] | None = Field(description="in the order of that operator's dimensions")
    direction: str | None = Field(description="forward or backward, of that operator")
    step_pass: OperatorPass
    shapes: tuple[tuple[int, ...], ...] = Field(description="of the inputs, where the trace has them")
    dtypes: tuple[str, ...]
    precision: str = Field(description="of the first floating-point input; fp32 where unknown")
    samples_us: Times = Field(description="of every call: its kernels on a GPU, its thread's time on a CPU")


class TracedCollectiveTimes(RecordModel):
    """All collectives of one name, size and group."""

    name: str
    part: str = Field(description="what they are for, as the breakdown calls it")
    group: str
    ranks: int = Field(ge=1, description="of the group")
    size_bytes: int = Field(ge=0, description="of the operation's larger side; 0: not known")
    waits_included: bool = Field(description="the other ranks were not traced, so times include waiting for them")
    samples_us: Times


class TracedStepRecord(RecordModel):
    """One rank's traced step; times in microseconds."""

    format: Literal["estimate-train-time/traced-step/1"] = FORMAT
    label: str
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    backend: str
    device: str = Field(description="name of the GPU; empty where unknown")
    step_us: float = Field(gt=0)
    operators: tuple[TracedOperatorTimes, ...]
    collectives: tuple[TracedCollectiveTimes, ...]


def step_records(step: TracedStep) -> list[TracedStepRecord]:
    """Return the record of every rank of an unchanged step."""
    return [
        TracedStepRecord(
            label=local.label,
            rank=local.rank,
            world_size=local.world_size,
            backend=local.backend,
            device=local.device_name,
            step_us=local.profiled_us,
            operators=_operators(step, rank),
            collectives=_collectives(step, rank),
        )
        for rank, local in enumerate(step.ranks)
    ]


def _operators(step: TracedStep, rank: int) -> tuple[TracedOperatorTimes, ...]:
    local = step.ranks[rank]
    calls: dict[int, float] = {}
    kernels: dict[tuple[str, OperatorPass], list[float]] = {}
    for position, role in enumerate(step.roles):
        if role.rank != rank or role.task == ADDED or not role.computes:
            continue
        task, us = local.tasks[role.task], step.tasks[position].duration_us
        if is_in_operator(local, task):
            call = known_around(local, task.operator)
            calls[call] = calls.get(call, 0.0) + us
        elif task.event != UNKNOWN:  # otherwise it is what earlier steps left to do
            kernels.setdefault((task.name or task.kind.value, role.step_pass), []).append(us)
    grouped: dict[tuple[object, ...], list[int]] = {}
    for call in sorted(calls):
        traced = local.operators[call]
        grouped.setdefault((traced.name, traced.step_pass, traced.shapes, traced.dtypes), []).append(call)
    times = [_times(local.operators[same[0]], [calls[call] for call in same]) for same in grouped.values()]
    times += [_kernel_times(name, step_pass, us) for (name, step_pass), us in kernels.items()]
    return tuple(sorted(times, key=lambda row: -sum(row.samples_us)))


def _times(traced: TracedOperator, samples_us: Sequence[float]) -> TracedOperatorTimes:
    known = known_call(traced)
    return TracedOperatorTimes(
        name=traced.name,
        operator=None if known is None else known.operator.name,
        shape=None if known is None else known.shape,
        direction=None if known is None else str(known.direction),
        step_pass=traced.step_pass,
        shapes=traced.shapes,
        dtypes=traced.dtypes,
        precision=precision_of(traced).value,
        samples_us=tuple(samples_us),
    )


def is_in_operator(local: LocalGraph, task: TracedTask) -> bool:
    """Return whether a task belongs to an operator of PyTorch's; a launch in none stands for itself."""
    if task.operator == NO_OPERATOR:
        return False
    return task.call == UNKNOWN or local.operators[task.operator].event != task.call


def _kernel_times(name: str, step_pass: OperatorPass, samples_us: Sequence[float]) -> TracedOperatorTimes:
    return TracedOperatorTimes(
        name=name,
        operator=None,
        shape=None,
        direction=None,
        step_pass=step_pass,
        shapes=(),
        dtypes=(),
        precision=Precision.FP32.value,
        samples_us=tuple(samples_us),
    )


def _collectives(step: TracedStep, rank: int) -> tuple[TracedCollectiveTimes, ...]:
    local = step.ranks[rank]
    places = step.places()[rank]
    samples: dict[tuple[str, str, str, int, int, bool], list[float]] = {}
    for collective in local.collectives:
        position = places[collective.task]
        key = (
            collective.name,
            traffic_of(collective, pass_of(local, collective.task), local.world_size),
            collective.group,
            len(collective.group_ranks) or local.world_size,
            collective.size_bytes,
            position not in step.arrivals,
        )
        samples.setdefault(key, []).append(step.tasks[position].duration_us)
    return tuple(
        TracedCollectiveTimes(
            name=name,
            part=part,
            group=group,
            ranks=ranks,
            size_bytes=size,
            waits_included=waits,
            samples_us=tuple(us),
        )
        for (name, part, group, ranks, size, waits), us in samples.items()
    )


def path_of(folder: Path, rank: int) -> Path:
    """Return where a rank's record lies."""
    return folder / f"traced-rank-{rank:05d}.json"


def write_records(folder: Path | str, step: TracedStep) -> list[Path]:
    """Write the record of every rank of an unchanged step, each whole or not at all, and return their paths.

    Raises:
        ConfigError: one cannot be written.
    """
    place = Path(folder)
    paths = []
    for record in step_records(step):
        path = path_of(place, record.rank)
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_whole(path, record.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"--record {folder}: {error.strerror}") from None
        paths.append(path)
    return paths


def read_record(path: Path) -> TracedStepRecord:
    """Read a rank's record.

    Raises:
        RecordError: it is not there, damaged, or no such record.
    """
    return TracedStepRecord.read(path, "is no traced step")
