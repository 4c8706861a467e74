"""Times of traced operators in other precisions and of casts, as ``microbench traced`` measures them on a device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, model_validator

from predictor.core.base.files import write_whole
from predictor.replay.files.record_model import RecordError, RecordModel
from predictor.replay.precision.operator_graph import Precision

Microseconds = Annotated[float, Field(ge=0)]
Samples = Annotated[tuple[Microseconds, ...], Field(min_length=1, description="every timed call, in µs, as measured")]


class MeasuredOperator(RecordModel):
    """One operator of a trace, called again with its shapes in a precision.

    One row holds one pass: ``backward`` is everything that the operator's backward computes, all gradients together.
    """

    operator: str = Field(min_length=1, description="as traced: aten::linear")
    shapes: tuple[tuple[int, ...], ...] = Field(description="of its inputs as traced; () of what is no tensor")
    dtypes: tuple[str, ...] = Field(default=(), description="of its inputs as measured, in PyTorch's names: c10::Half")
    attributes: dict[str, str] = Field(
        default_factory=dict, description="what the shapes do not say, as text: stride, padding, groups, dim"
    )
    precision: Precision = Field(description="that it computed in")
    step_pass: Literal["forward", "backward"] = "forward"
    samples_us: Samples

    @property
    def us(self) -> float:
        """Return the median call."""
        return median(self.samples_us)


class CastSample(RecordModel):
    """A tensor of one size, cast."""

    numel: int = Field(gt=0, description="elements")
    us: Microseconds = Field(description="median call")


class MeasuredCast(RecordModel):
    """Time of a cast between two precisions: ``alpha_us_per_element · numel + beta_us``."""

    cast_from: Precision
    cast_to: Precision
    alpha_us_per_element: float = Field(ge=0)
    beta_us: float = Field(ge=0)
    relative_error: float = Field(default=0.0, ge=0, description="largest |fitted ÷ measured − 1| over the samples")
    samples: tuple[CastSample, ...] = ()

    @model_validator(mode="after")
    def _differ(self) -> MeasuredCast:
        if self.cast_from is self.cast_to:
            raise ValueError(f"cast_from and cast_to are both {self.cast_to}; a cast is between two precisions")
        return self

    def us(self, numel: int) -> float:
        """Return the fitted time of a tensor."""
        return self.alpha_us_per_element * numel + self.beta_us


class MeasuredCosts(RecordModel):
    """What one device needs for operators and casts."""

    format: Literal["estimate-train-time/measured-costs/1"] = "estimate-train-time/measured-costs/1"
    device: str = Field(min_length=1, description="as torch.cuda.get_device_name() or the processor's model")
    device_kind: Literal["cuda", "rocm", "cpu"]
    threads: int = Field(ge=1, description="intra-op threads of torch")
    torch: str = Field(min_length=1, description="version")
    host: str | None = None
    commit: str | None = None
    finished: str | None = Field(default=None, description="time, ISO 8601")
    operators: tuple[MeasuredOperator, ...] = ()
    casts: tuple[MeasuredCast, ...] = ()


def read_measured_costs(path: Path) -> MeasuredCosts:
    """Read a table of measured costs.

    Raises:
        RecordError: it is not there, damaged, or no such table.
    """
    return MeasuredCosts.read(path, "is no table of measured costs")


def write_measured_costs(path: Path, costs: MeasuredCosts) -> None:
    """Write a table of measured costs.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, costs.model_dump_json(indent=1) + "\n")


def joined(tables: Iterable[MeasuredCosts]) -> MeasuredCosts:
    """Return several tables of one device as one, the rows of later tables after those of earlier ones.

    Raises:
        RecordError: there is none, or they are of different devices or threads.
    """
    everything = list(tables)
    if not everything:
        raise RecordError("there is no table of measured costs to join")
    first = everything[0]
    for other in everything:
        if (other.device, other.device_kind, other.threads) != (first.device, first.device_kind, first.threads):
            raise RecordError(
                f"measured costs are of {first.device} ({first.threads} threads) and of {other.device} "
                f"({other.threads} threads); give tables of one device"
            )
    return first.model_copy(
        update={
            "operators": tuple(row for table in everything for row in table.operators),
            "casts": tuple(cast for table in everything for cast in table.casts),
        }
    )
