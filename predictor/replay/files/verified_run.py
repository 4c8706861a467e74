"""A measured run beside its prediction, as a record on disk: written by verification, read by calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field

from predictor.core.base.files import write_whole
from predictor.replay.files.measured_step import PassName
from predictor.replay.files.record_model import RecordModel

FILE = "comparison.json"


class PredictedTime(RecordModel):
    """A predicted time in microseconds, with its 90 % interval."""

    us: float
    low_us: float
    high_us: float
    source: str = Field(description="interpolated, extrapolated or analytic: the weakest of any part")

    def holds(self, us: float) -> bool:
        """Return whether a time lies in the interval."""
        return self.low_us <= us <= self.high_us


class Launch(RecordModel):
    """One launch of the configuration: the slowest rank's steps, in microseconds."""

    step_us: float = Field(description="median of the samples")
    spread: float = Field(description="interquartile range ÷ median of the samples")
    samples_us: tuple[float, ...]
    profiled_us: tuple[float, ...] = Field(description="steps under the profiler, which are slower")
    drift: float | None = Field(
        default=None, description="reference kernel beside the launch ÷ while the system was measured; null: not known"
    )
    tries: int = Field(default=1, ge=1, description="launches, of which this is the quietest")


class PartOfStep(RecordModel):
    """A part of the step on one pipeline stage, in microseconds; the parts of a stage add up to the step."""

    stage: int
    name: str
    predicted_us: float | None
    low_us: float | None = None
    high_us: float | None = None
    measured_us: float | None = Field(description="median of the steps, mean of the stage's ranks and of the launches")


class OperatorOfStep(RecordModel):
    """All calls of an operator or a collective in one pass of a step, on one rank of a stage."""

    stage: int
    step_pass: PassName = Field(validation_alias=AliasChoices("pass", "step_pass"), serialization_alias="pass")
    name: str
    part: str = Field(description="of a collective: tensor_parallel, data_parallel …; empty for operators")
    predicted: PredictedTime | None
    predicted_calls: float | None = Field(description="need not be whole where a kernel is timed by its bytes")
    measured_us: float | None
    measured_calls: float | None
    missing: str = Field(default="", description="why one side is missing")

    @property
    def error(self) -> float | None:
        """Return predicted over measured, minus one; None where one is missing or nothing was measured to run."""
        if self.predicted is None or not self.measured_us:
            return None
        return self.predicted.us / self.measured_us - 1.0


class VerifiedRun(RecordModel):
    """One configuration, predicted and measured. Without launches it is a time that others report."""

    format: Literal["estimate-train-time/verified-run/1"] = "estimate-train-time/verified-run/1"
    name: str
    group: str = Field(default="", description="table or source of a run of others")
    statistic: str = Field(default="", description="over several steps (min, median …), where it is known")
    configuration: dict[str, Any] = Field(description="in the full form, without the system")
    config_hash: str
    num_gpus: int = Field(ge=1)
    system: str = Field(description="that predicts")
    gpu: str = Field(description="of that system")
    precision: str
    device: str | None = Field(default=None, description="that ran; null where it is not known")
    device_kind: str | None = None
    driver: str | None = None
    threads: int | None = None
    host: str | None = None
    commit: str | None = None
    finished: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    predicted: PredictedTime
    measured_us: float = Field(gt=0, description="median step; of several launches the mean of their medians")
    error: float = Field(description="predicted over measured, minus one")
    drift: float | None = Field(default=None, description="the largest of the launches")
    disturbed: bool = Field(
        default=False, description="by the drift, the machine was busier than while it was measured, in every try"
    )
    inside: bool = Field(description="the measured step lies in the predicted interval")
    noise: float | None = Field(
        default=None, description="medians of the launches: largest − smallest, over their mean"
    )
    launches: tuple[Launch, ...] = ()
    parts: tuple[PartOfStep, ...] = ()
    operators: tuple[OperatorOfStep, ...] = ()
    operator_error: float | None = Field(
        default=None, description="median absolute error of the operators with 1 % of the measured step or more"
    )
    compared_operators: int = Field(default=0, description="operators that operator_error is of")


def read_verified_run(path: Path) -> VerifiedRun:
    """Read what ``predictor verify`` wrote beside a run.

    Args:
        path: of the file, or of the run's folder.

    Raises:
        RecordError: it is not there, damaged, or no such record.
    """
    path = path / FILE if path.is_dir() else path
    return VerifiedRun.read(path, "is no verified run")


def write_verified_run(folder: Path, run: VerifiedRun) -> Path:
    """Write a record beside its run and return its path.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / FILE
    write_whole(path, run.model_dump_json(indent=1, by_alias=True) + "\n")
    return path
