"""Provenance of a table: a JSON file beside it, without which it does not load.

What must not change while a table grows is its ``Identity``: the device, the libraries whose kernels are timed, and the
configuration. Each run that added rows is a ``Session``, which records what else the machine had: its host, the release
of its kernel, the driver to the last digit. A killed run leaves a session without an end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from microbench.errors import TableError
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import first_problem
from predictor.core.costs.operator import Direction

SUFFIX = ".provenance.json"


class Closed(BaseModel):
    """Base of everything that is read from disk: no unknown key, no infinite number, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Identity(Closed):
    """Operator or collective, device, libraries and settings of a table; only a run of equal identity may add rows."""

    kind: Literal["operator", "collective"]
    name: str = Field(description="as the catalogue has it")
    precision: str
    worker: str = Field(description="which share of the work, e.g. 0of4, or 2x4 for a collective's topology")
    dimensions: tuple[str, ...]
    directions: tuple[Direction, ...]
    device: str = Field(description="name of the GPU or of the processor, without spaces")
    device_kind: Literal["cpu", "cuda"]
    driver: str | None = Field(description="branch of the GPU driver, the number before the first dot; null on a CPU")
    versions: dict[str, str] = Field(description="the libraries whose kernels are timed: torch, cuda, cublas, cudnn, …")
    settings: dict[str, str] = Field(default={}, description="threads, backend, … : what else the numbers depend on")
    config_hash: str = Field(description="SHA-256 of the sweep and the timing policy")


class Session(Closed):
    """One run that added rows; times in UTC, ISO 8601."""

    started: str
    finished: str | None = None
    host: str
    commit: str = Field(description="of the project; ends in -dirty where the checkout was changed")
    environment: dict[str, str] = Field(
        default={}, description="what may change while a table grows: python, the system's kernel, the driver's release"
    )
    state_before: dict[str, str] = Field(description="clocks, power, temperature, load and what else may vary")
    state_after: dict[str, str] | None = None
    relative_spread: float | None = Field(
        default=None, description="median over the table's rows of IQR ÷ median: how noisy the host was"
    )
    reference_us: tuple[float, ...] = Field(
        default=(), description="reference kernel (reference.py) beside the rows: slowest of as many processes as ranks"
    )


class Provenance(Closed):
    """The whole file."""

    format: Literal["estimate-train-time/measurement/2"] = "estimate-train-time/measurement/2"
    identity: Identity
    sessions: tuple[Session, ...] = Field(min_length=1)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def provenance_path(table: Path) -> Path:
    """Return the path of a table's provenance."""
    return table.with_name(table.name.removesuffix(".csv") + SUFFIX)


def read_provenance(table: Path) -> Provenance:
    """Read the provenance of a table.

    Raises:
        TableError: there is none, or it is damaged.
    """
    path = provenance_path(table)
    try:
        return Provenance.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise TableError(
            f"{table}: no {path.name} beside it; a table that does not say how it was made is not read"
        ) from None
    except ValidationError as error:
        raise TableError(f"{path}: not a provenance file: {first_problem(error)}") from None


def write_provenance(table: Path, provenance: Provenance) -> None:
    """Write a table's provenance atomically."""
    write_whole(provenance_path(table), provenance.model_dump_json(indent=1) + "\n")


def difference(old: Identity, new: Identity) -> str:
    """Return the first field in which two identities differ, for a message; empty if they are equal."""
    for field in Identity.model_fields:
        was, is_now = getattr(old, field), getattr(new, field)
        if was != is_now:
            return f"{field} was {was}, is {is_now}"
    return ""
