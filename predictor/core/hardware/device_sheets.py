"""Data sheets of GPUs by name: numbers beside a published system's hardware file, such as fp32 peaks."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_valid
from predictor.core.base.remembered import per_object
from predictor.core.hardware.hardware import Gpu

FILE = Path(__file__).with_name("device_sheets.yaml")


class Sheet(BaseModel):
    """Peaks and memory bandwidth of one device; ``name`` is part of the device's name as torch gives it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    peak_tflop_per_s: dict[str, float]
    memory_bandwidth_gb_per_s: float = Field(gt=0)
    exact_sum_ratio: float = Field(
        default=1.0,
        ge=1.0,
        description="time of an fp8 product that adds in fp32 over one that adds in fewer bits, where tensor cores do",
    )
    full_clock: dict[str, float] = Field(
        default={},
        description="share of the peak up to which products without a pause keep the full clock, by precision; see "
        "core/costs/sustained.py",
    )
    no_slower_than: str | None = Field(
        default=None,
        description="published system whose GPU has the same chip and less power; see core/costs/sustained.py",
    )
    source: str = Field(min_length=1)


class _Sheets(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sheets: tuple[Sheet, ...]


@cache
def _sheets() -> tuple[Sheet, ...]:
    return read_valid(FILE, _Sheets, ConfigError).sheets


def sheet_named(device_name: str) -> Sheet | None:
    """Return the data sheet of a device, the one with the longest name that fits; None where none is known."""
    squeezed = device_name.replace(" ", "").upper()
    matching = [sheet for sheet in _sheets() if sheet.name.upper() in squeezed]
    return max(matching, key=lambda sheet: len(sheet.name)) if matching else None


@per_object
def known_peaks(gpu: Gpu) -> dict[str, float]:
    """Return the peaks of a GPU by precision, TFLOP/s: of its own file, else of its data sheet."""
    sheet = sheet_named(gpu.name)
    stated = {key: peak.value for key, peak in gpu.peak_tflop_per_s.items()}
    return {**(sheet.peak_tflop_per_s if sheet is not None else {}), **stated}
