"""One row of a measurement table: the result of one call in one direction, and its line of CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median, quantiles
from typing import NamedTuple

from predictor.core.costs.operator import Direction, Shape

COLUMNS = (
    "direction", "median_us", "spread_us", "samples", "kernel_us", "kernel_spread_us", "host_us", "kernel", "status",
    "sm_clock_mhz", "power_w", "temperature_c", "samples_us", "kernel_samples_us",
)  # fmt: skip
DIGITS = 3


class Status(StrEnum):
    """Outcome of a call."""

    OK = "ok"
    HOST_BOUND = "host_bound"  # timed from an idle GPU only: the host could not launch ahead of it
    OUT_OF_MEMORY = "out_of_memory"
    ERROR = "error"
    DEVICE_LOST = "device_lost"  # the GPU answered nothing after this call

    @property
    def is_timed(self) -> bool:
        """Return whether the row has a time."""
        return self in (Status.OK, Status.HOST_BOUND)


class DeviceState(NamedTuple):
    """State of the GPU right after a call; None where it is not reported."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


NO_STATE = DeviceState()


def interquartile_range(samples: Sequence[float]) -> float:
    """Return the distance between the quartiles; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return high - low


@dataclass(frozen=True, slots=True)
class Measurement:
    """One call in one direction.

    Attributes:
        shape: sizes in the order of the catalogue's dimensions.
        samples_us: wall time of every timed repetition, in the order of measurement; empty unless timed.
        kernel: kernel, library or backend that ran; the reason where ``status`` is an error.
        kernel_samples_us: kernel time alone. On a GPU of other repetitions, without gaps between launches; on a CPU of
            the same ones, without time in which the host ran another process; empty where not known.
        host_us: the host's time to launch the pass on a busy GPU; None on a CPU.
        state: of the GPU after the last repetition.
    """

    shape: Shape
    direction: Direction
    samples_us: tuple[float, ...]
    kernel: str
    status: Status = Status.OK
    kernel_samples_us: tuple[float, ...] = ()
    host_us: float | None = None
    state: DeviceState = NO_STATE

    @property
    def median_us(self) -> float:
        """Return the median of the samples."""
        return median(self.samples_us)

    @property
    def spread_us(self) -> float:
        """Return the interquartile range of the samples."""
        return interquartile_range(self.samples_us)

    @property
    def best_samples_us(self) -> tuple[float, ...]:
        """Return the samples of the kernels alone where there are any, else of the whole."""
        return self.kernel_samples_us or self.samples_us


def header(dimensions: Sequence[str]) -> bytes:
    """Return a table's first line."""
    return (",".join((*dimensions, *COLUMNS)) + "\n").encode()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.{DIGITS}f}"


def _numbers(values: Sequence[float]) -> str:
    return json.dumps([round(value, DIGITS) for value in values], separators=(",", ":"))


def to_line(row: Measurement) -> str:
    """Return one row as a line of CSV; text never holds a line break, so a line is a row."""
    timed = row.status.is_timed
    kernels = row.kernel_samples_us
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow([
        *row.shape,
        row.direction.value,
        _number(row.median_us if timed else None),
        _number(row.spread_us if timed else None),
        len(row.samples_us),
        _number(median(kernels) if kernels else None),
        _number(interquartile_range(kernels) if kernels else None),
        _number(row.host_us),
        " ".join(row.kernel.split()),
        row.status.value,
        *map(_number, row.state),
        _numbers(row.samples_us),
        _numbers(kernels),
    ])  # fmt: skip
    return stream.getvalue()


def from_line(line: str, dimensions: Sequence[str]) -> Measurement:
    """Read one line.

    Raises:
        ValueError: a value is missing, superfluous or of the wrong kind.
    """
    values = next(csv.reader([line], strict=True))
    expected = len(dimensions) + len(COLUMNS)
    if len(values) != expected:
        raise ValueError(f"{len(values)} values, expected {expected}")
    shape = tuple(int(value) for value in values[: len(dimensions)])
    direction, median_us, _, count, _, _, host_us, kernel, status, *state, raw, raw_kernel = values[len(dimensions) :]
    samples, kernels = (tuple(float(us) for us in json.loads(text)) for text in (raw, raw_kernel))
    host, *reported = (float(text) if text else None for text in (host_us, *state))
    row = Measurement(
        shape, Direction(direction), samples, kernel, Status(status), kernels, host, DeviceState(*reported)
    )
    if len(samples) != int(count) or bool(samples) != row.status.is_timed:
        raise ValueError(f"{len(samples)} samples, but the row says {count} and {status}")
    if samples and abs(row.median_us - float(median_us)) > 2 * 10.0**-DIGITS:
        raise ValueError(f"median_us is {median_us}, but that of samples_us is {row.median_us:.{DIGITS}f}")
    return row
