"""Read the tables that ``python -m microbench`` writes; after this file they are rows like anybody's.

What is fitted is the time of the kernels alone, as a prediction adds the host's part itself. A row of a GPU that has
only the time from an idle device (host-bound) is handed on as unusable, so that the card counts it. A row without a
time (out of memory, refused by the kernel) says what fits, not how long it takes, and is no row here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fitting.tables import Row, TableError, Tables
from microbench.errors import TableError as MicrobenchTableError
from microbench.provenance import SUFFIX, Identity, read_provenance
from microbench.table import Measurement, read_table
from predictor.costs.catalogue import catalogue
from predictor.costs.collectives import COLLECTIVES
from predictor.costs.hardware import Quantity
from predictor.costs.operator import Direction, Operator

KINDS = ("operator", "collective")
# An operator of many short kernels: what its shortest calls take from an idle device is launching.
HOST_OPERATOR = "rope"
FEWEST_CALLS = 5
HOST_BOUND = "host-bound: launching took longer than the kernels, whose own time is not known"


def is_own(folder: Path) -> bool:
    """Return whether a folder holds tables of microbench."""
    return any(any((folder / kind).glob(f"*{SUFFIX}")) for kind in KINDS)


def _identity(path: Path) -> Identity:
    try:
        return read_provenance(path).identity
    except MicrobenchTableError as error:
        raise TableError(str(error)) from None


def _operator(identity: Identity, path: Path) -> Operator:
    """Return what a table is of, and check that the catalogue still means the same by it."""
    known = catalogue() if identity.kind == "operator" else COLLECTIVES
    operator = known.get(identity.name)
    if operator is None or operator.dimensions != identity.dimensions:
        known_as = f"dimensions {', '.join(operator.dimensions)}" if operator else "no such name"
        raise TableError(
            f"{path}: {identity.name} of dimensions {', '.join(identity.dimensions)}: the catalogue has {known_as}"
        )
    return operator


@dataclass(frozen=True, slots=True)
class OwnTables(Tables):
    """The tables of one device and precision in one results folder."""

    identities: tuple[tuple[Path, Identity], ...] = ()

    def paths(self) -> dict[str, list[Path]]:
        """Return the files of each regressor.

        Raises:
            TableError: a file is of no operator or collective that the catalogue knows.
        """
        result: dict[str, list[Path]] = {}
        for path, identity in self.identities:
            result.setdefault(_operator(identity, path).regressor_name, []).append(path)
        return result

    def rows(self, regressor: str) -> list[Row]:
        """Read a regressor's rows.

        Raises:
            TableError: a table cannot be read.
        """
        identities = dict(self.identities)
        result = []
        for path in self.paths()[regressor]:
            operator = _operator(identities[path], path)
            on_gpu = identities[path].kind == "operator" and identities[path].device_kind == "cuda"
            for row in _measurements(path):
                why = HOST_BOUND if on_gpu and not row.kernel_samples_us else None
                us = median(row.best_samples_us)
                result.append(
                    Row(operator, operator.name, row.direction, row.shape, us, kernel=row.kernel, unusable=why)
                )
        return result

    def launch_quantities(self) -> dict[str, Quantity] | None:
        """Return what one kernel launch costs the host, forward and backward: nothing on a CPU, as it launches none."""
        found = {}
        rows = [
            row
            for path, identity in self.identities
            if identity.name == HOST_OPERATOR and identity.device_kind == "cuda"
            for row in _measurements(path)
        ]
        for direction, kernels in zip(Direction, catalogue()[HOST_OPERATOR].launches, strict=True):
            host = [row.host_us for row in rows if row.direction is direction and row.host_us is not None]
            if len(host) >= FEWEST_CALLS:
                source = (
                    f"host time to launch a RoPE {direction} pass, {median(host):.1f} µs, over its {kernels} kernels"
                )
                found[f"launch_{direction}_us"] = Quantity(value=round(median(host) / kernels, 3), source=source)
        return found


def _measurements(path: Path) -> Sequence[Measurement]:
    """Return the rows that have a time.

    Raises:
        TableError: the table cannot be read.
    """
    try:
        return [row for row in read_table(path).rows if row.status.is_timed]
    except MicrobenchTableError as error:
        raise TableError(str(error)) from None


def find_own(folder: Path, gpu: str, precisions: Sequence[str]) -> list[Tables]:
    """Return the tables of a device in a results folder, one per precision that has operators.

    Raises:
        TableError: a table's provenance is damaged, or none is of this device and one of these precisions.
    """
    paths = sorted(path for kind in KINDS for path in (folder / kind).glob("*.csv"))
    identities = [(path, _identity(path)) for path in paths]
    found: list[Tables] = []
    for precision in precisions:
        chosen = tuple((p, i) for p, i in identities if i.device == gpu and i.precision == precision)
        if any(identity.kind == "operator" for _, identity in chosen):
            found.append(OwnTables(folder, gpu, precision, chosen))
    if not found:
        known = sorted({f"{identity.device} in {identity.precision}" for _, identity in identities})
        raise TableError(
            f"{folder}: no table of {gpu} in {' or '.join(precisions)}; tables there are of {', '.join(known)}"
        )
    return found
