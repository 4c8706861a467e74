"""Record of one training step: one JSON file, written atomically."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field, ValidationError

from microbench.errors import TableError
from microbench.provenance import Closed, Session
from microbench.rows import Status, interquartile_range
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem

FORMAT = "estimate-train-time/step/1"
FOLDER = "steps"


class Agreement(Closed):
    """Errors of a small copy of the step against the reference in fp32, each ‖a − b‖ ÷ ‖b‖."""

    precision: str
    loss_error: float
    loss_tolerance: float
    gradient_error: float = Field(description="of the parameter whose gradient is farthest off, first step")
    gradient_tolerance: float
    worst_parameter: str
    update_error: float = Field(description="of the movement of all weights in three steps")
    update_tolerance: float

    @property
    def failures(self) -> list[str]:
        """Return the errors above their tolerances, for a message."""
        errors = {
            "loss": (self.loss_error, self.loss_tolerance),
            f"gradient of {self.worst_parameter}": (self.gradient_error, self.gradient_tolerance),
            "update": (self.update_error, self.update_tolerance),
        }
        return [
            f"{self.precision} {name} is off by {error:.2g}, allowed {tolerance:.2g}"
            for name, (error, tolerance) in errors.items()
            if not error <= tolerance
        ]


class StepSample(Closed):
    """One timed step, in microseconds; the three parts add up to ``device_us``."""

    device_us: float = Field(description="from the first to the last event of the step; on a CPU by the wall")
    wall_us: float = Field(description="from an idle device to an idle device, by the host's clock")
    forward_us: float
    backward_us: float
    optimizer_us: float


class KernelTime(Closed):
    """All launches of one kernel in one step."""

    name: str
    count: int
    time_us: float


class Kernels(Closed):
    """Kernels of one step on the device, profiled once after the timed steps."""

    count: int = Field(description="launches, copies and fills included")
    time_us: float = Field(description="sum over all of them; less than the step where the device waits")
    by_category: tuple[KernelTime, ...]
    longest: tuple[KernelTime, ...]


class Memory(Closed):
    """Peaks over the timed steps, in bytes, by torch's allocator."""

    allocated: int = Field(description="tensors")
    reserved: int = Field(description="held from the device")


class Measured(Closed):
    """Measurements of a step that ran to its end."""

    parameters: int
    warm_up: tuple[StepSample, ...]
    samples: tuple[StepSample, ...] = Field(min_length=1, description="in the order of measurement")
    loss: float = Field(description="of the last micro-batch of the last timed step")
    memory: Memory | None = Field(description="null on a CPU")
    kernels: Kernels | None = Field(description="null where none could be recorded, as on a CPU")

    def median_us(self, part: str) -> float:
        """Return the median of a field of the samples."""
        return float(median(getattr(sample, part) for sample in self.samples))

    @property
    def relative_spread(self) -> float:
        """Return IQR ÷ median of the steps by events."""
        return interquartile_range([sample.device_us for sample in self.samples]) / self.median_us("device_us")


class StepRecord(Closed):
    """The whole file."""

    format: Literal["estimate-train-time/step/1"] = "estimate-train-time/step/1"
    name: str
    status: Status
    reason: str = Field(default="", description="why there is no measurement")
    configuration: dict[str, Any] = Field(description="what the predictor reads, without the system")
    config_hash: str
    device: str
    device_kind: Literal["cpu", "cuda"]
    driver: str | None
    versions: dict[str, str]
    settings: dict[str, str] = Field(description="what ran: attention's backend, optimizer, seed …")
    session: Session
    check: tuple[Agreement, ...] = ()
    measured: Measured | None = None


def record_path(results: Path, name: str) -> Path:
    """Return the path of a step's record."""
    return results / FOLDER / f"{name}.json"


def read_record(path: Path) -> StepRecord:
    """Read one record.

    Raises:
        TableError: it is damaged.
    """
    try:
        return StepRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise TableError(f"{path}: not a recorded step: {first_problem(error)}") from None


def read_records(results: Path) -> list[StepRecord]:
    """Read all records of a results folder, by name.

    Raises:
        TableError: there is none, or one is damaged.
    """
    paths = sorted((results / FOLDER).glob("*.json"))
    if not paths:
        raise TableError(f"{results / FOLDER} has no recorded step; python -m microbench steps --out {results}")
    return [read_record(path) for path in paths]


def write_record(results: Path, record: StepRecord) -> Path:
    """Write a record atomically and return its path."""
    path = record_path(results, record.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, record.model_dump_json(indent=1) + "\n")
    return path
