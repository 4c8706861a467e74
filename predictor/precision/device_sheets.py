"""What a device can do in each precision at most: peaks and memory bandwidth, from data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import Field

from predictor.base.errors import ConfigError
from predictor.base.read_yaml import read_valid
from predictor.costs.hardware import Gpu
from predictor.precision.operator_graph import Precision
from predictor.precision.work_of_shapes import ShapeWork
from predictor.traces.closed import Closed

FILE = Path(__file__).with_name("device_sheets.yaml")


class _Sheet(Closed):
    name: str = Field(min_length=1)
    peak_tflop_per_s: dict[Precision, float]
    memory_bandwidth_gb_per_s: float = Field(gt=0)
    source: str = Field(min_length=1)


class _Sheets(Closed):
    sheets: tuple[_Sheet, ...]


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """Limits of one device.

    Attributes:
        name: of the device.
        memory_bandwidth_gb_per_s: 1 GB = 10⁹ bytes.
        peak_tflop_per_s: dense, by precision.
        source: of the numbers.
    """

    name: str
    memory_bandwidth_gb_per_s: float
    peak_tflop_per_s: Mapping[Precision, float] = field(default_factory=dict)
    source: str = ""

    def us(self, flops: float, elements: float, precision: Precision) -> float | None:
        """Return the least time of some work, by the roofline; None where the peak is needed and not known."""
        moved = elements * precision.bytes / (self.memory_bandwidth_gb_per_s * 1e3)
        if not flops:
            return moved
        peak = self.peak_tflop_per_s.get(precision)
        return None if peak is None else max(flops / (peak * 1e6), moved)


def pass_work(work: ShapeWork, is_backward: bool) -> tuple[float, float]:
    """Return FLOPs and elements of one pass."""
    return (work.backward_flops, work.backward_elements) if is_backward else (work.flops, work.elements)


@cache
def _sheets() -> tuple[_Sheet, ...]:
    return read_valid(FILE, _Sheets, ConfigError).sheets


def device_sheet(device_name: str) -> DeviceSheet | None:
    """Return the data sheet of a device by its name as torch gives it; None where none is known."""
    squeezed = device_name.replace(" ", "").upper()
    matching = [sheet for sheet in _sheets() if sheet.name.upper() in squeezed]
    if not matching:
        return None
    sheet = max(matching, key=lambda sheet: len(sheet.name))
    return DeviceSheet(device_name, sheet.memory_bandwidth_gb_per_s, sheet.peak_tflop_per_s, sheet.source)


def sheet_of(gpu: Gpu) -> DeviceSheet:
    """Return the data sheet of a published system's GPU, with the peaks that it lacks from the sheet of its name."""
    general = device_sheet(gpu.name)
    known = {Precision(name): peak.value for name, peak in gpu.peak_tflop_per_s.items() if name in set(Precision)}
    peaks = {**(general.peak_tflop_per_s if general is not None else {}), **known}
    bandwidth = gpu.memory_bandwidth_gb_per_s
    return DeviceSheet(gpu.name, bandwidth.value, peaks, bandwidth.source)
