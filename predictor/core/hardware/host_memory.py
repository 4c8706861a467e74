"""A node's host memory, its bandwidth and its capacity: of the configuration's cluster, else by data sheet."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Quantity, System


@cache
def _sheets(name: str) -> dict[str, Quantity]:
    data = read_mapping(Path(__file__).with_name(f"{name}.yaml"))
    return {system: Quantity.model_validate(sheet) for system, sheet in data.items()}


def _of_sheet(hardware: System, name: str) -> Quantity | None:
    base = hardware.calibration.base if hardware.calibration is not None else ""
    return _sheets(name).get(hardware.name) or _sheets(name).get(Path(base).name)


def host_memory_gb_per_s(hardware: System) -> Quantity | None:
    """Return the memory bandwidth of one node's CPUs; None where it is not known."""
    return hardware.host_memory_gb_per_s or _of_sheet(hardware, "host_memory")


def host_memory_gib(hardware: System) -> Quantity | None:
    """Return the host memory of one node; None where it is not known."""
    return hardware.host_memory_gib or _of_sheet(hardware, "host_capacity")
