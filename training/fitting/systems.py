"""Read the source file of a system: hardware, origin of the measurements, donors."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from predictor.core.base.read_yaml import read_valid
from predictor.core.hardware.hardware import System


class SystemFileError(ValueError):
    """A system file that cannot be read; the message names the file and the reason."""


class Provenance(BaseModel):
    """Origin of the measurements, their licence, and what is known about the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measured_by: str = Field(min_length=1, description="who; of a system known from data sheets, that it was not")
    attribution: str = Field(min_length=1, description="source and licence, in the source's words")
    known: tuple[str, ...]
    not_stated: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the provenance as items of a card's list."""
        return [
            f"- Measured by: {self.measured_by}.",
            f"- Source and licence: {self.attribution}.",
            *(f"- Known: {line}." for line in self.known),
            *(f"- Not stated by the source: {line}." for line in self.not_stated),
        ]


class SystemSource(BaseModel):
    """One file of ``training/systems``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hardware: System
    provenance: Provenance
    donor: str | None = Field(
        default=None, description="published system whose regressors answer for operators without rows"
    )


def measured_sources(folder: Path) -> dict[str, SystemSource]:
    """Return the systems of a folder that are measured, not known from data sheets, by name.

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
