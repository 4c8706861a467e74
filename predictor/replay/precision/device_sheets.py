"""Peaks of a device per precision, and its memory bandwidth, from data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from predictor.core.hardware.device_sheets import sheet_named
from predictor.core.hardware.hardware import Gpu
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.precision.work_of_shapes import ShapeWork


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


def device_sheet(device_name: str) -> DeviceSheet | None:
    """Return the data sheet of a device by its name as torch gives it; None where none is known."""
    sheet = sheet_named(device_name)
    if sheet is None:
        return None
    peaks = {Precision(name): peak for name, peak in sheet.peak_tflop_per_s.items() if name in set(Precision)}
    return DeviceSheet(device_name, sheet.memory_bandwidth_gb_per_s, peaks, sheet.source)


def sheet_of(gpu: Gpu) -> DeviceSheet:
    """Return the data sheet of a published system's GPU, with the peaks that it lacks from the sheet of its name."""
    general = device_sheet(gpu.name)
    known = {Precision(name): peak.value for name, peak in gpu.peak_tflop_per_s.items() if name in set(Precision)}
    peaks = {**(general.peak_tflop_per_s if general is not None else {}), **known}
    bandwidth = gpu.memory_bandwidth_gb_per_s
    return DeviceSheet(gpu.name, bandwidth.value, peaks, bandwidth.source)
