"""Read a system's source file: its hardware, the origin of its measurements, and its donors."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.base.read_yaml import read_valid
from predictor.costs.hardware import System


class SystemFileError(ValueError):
    """A system file that cannot be read; the message names the file and the reason."""


class Provenance(BaseModel):
    """Who measured, under which licence, and what is known about the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measured_by: str = Field(min_length=1)
    attribution: str = Field(min_length=1, description="source and licence, as the source asks for")
    known: tuple[str, ...]
    not_stated: tuple[str, ...]


class SystemSource(BaseModel):
    """One file of ``training/systems``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: System
    provenance: Provenance
    donor: str | None = Field(default=None, description="published system that answers for what is not measured here")


def measured_sources(folder: Path) -> dict[str, SystemSource]:
    """Return a folder's systems that have tables of their own, by name; the others are known from data sheets.

    Raises:
        SystemFileError: one of them cannot be read.
    """
    sources = {path.stem: read_system(path) for path in sorted(folder.glob("*.yaml"))}
    return {name: source for name, source in sources.items() if source.hardware.transfer is None}


def read_system(path: Path) -> SystemSource:
    """Read a system's source file.

    Raises:
        FileNotFoundError: there is no such file.
        SystemFileError: it is not YAML, or a field is missing, unknown or of the wrong type.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such system file")
    return read_valid(path, SystemSource, SystemFileError)
