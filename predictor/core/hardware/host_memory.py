"""Bandwidth of a node's host memory: of the configuration's cluster, else by data sheet."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from predictor.core.base.read_yaml import read_mapping
from predictor.core.hardware.hardware import Quantity, System

DATA = Path(__file__).with_name("host_memory.yaml")


@lru_cache(maxsize=1)
def _sheets() -> dict[str, Quantity]:
    return {name: Quantity.model_validate(sheet) for name, sheet in read_mapping(DATA).items()}


def host_memory_gb_per_s(hardware: System) -> Quantity | None:
    """Return the memory bandwidth of one node's CPUs; None where it is not known."""
    if hardware.host_memory_gb_per_s is not None:
        return hardware.host_memory_gb_per_s
    base = hardware.calibration.base if hardware.calibration is not None else ""
    return _sheets().get(hardware.name) or _sheets().get(Path(base).name)
