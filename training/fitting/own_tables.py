"""Read the tables that ``python -m microbench`` writes; after this file they are rows like anybody's.

What is fitted is the time of the kernels alone where a table has it, as a prediction adds the host's part itself. A row
without a time (out of memory, refused by the kernel) says what fits, not how long it takes, and is no row here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from fitting.tables import Row, TableError, Tables
from microbench.errors import TableError as MicrobenchTableError
from microbench.provenance import SUFFIX, Identity, read_provenance
from microbench.table import Measurement, Status, read_table
from predictor.costs.catalogue import catalogue
from predictor.costs.collectives import COLLECTIVES
from predictor.costs.hardware import Quantity
from predictor.costs.operator import Direction, Operator

KINDS = ("operator", "collective")
# An operator of many short kernels: what its shortest calls take from an idle device is launching.
HOST_OPERATOR = "rope"
LAUNCHING_DECILE = 10
LAUNCHING_RATIO = 2.0
FEWEST_CALLS = 5


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
            result += [
                Row(operator, operator.name, row.direction, row.shape, median(row.best_samples_us))
                for row in _measurements(path)
            ]
        return result

    def launch_quantities(self) -> dict[str, Quantity] | None:
        """Return what one kernel launch costs the host, forward and backward: nothing on a CPU, as it launches none."""
        host = [path for path, identity in self.identities if identity.name == HOST_OPERATOR]
        found = {}
        for direction, kernels in zip(Direction, catalogue()[HOST_OPERATOR].launches, strict=True):
            gaps = [
                row.median_us
                for path in host
                if dict(self.identities)[path].device_kind == "cuda"
                for row in _measurements(path)
                if row.direction is direction and row.median_us > LAUNCHING_RATIO * median(row.best_samples_us)
            ]
            if len(gaps) >= FEWEST_CALLS:
                floor_us = quantiles(gaps, n=LAUNCHING_DECILE, method="inclusive")[0]
                source = (
                    f"shortest RoPE {direction} calls from an idle GPU, {floor_us:.1f} µs, over their {kernels} kernels"
                )
                found[f"launch_{direction}_us"] = Quantity(value=round(floor_us / kernels, 3), source=source)
        return found


def _measurements(path: Path) -> Sequence[Measurement]:
    """Return the rows that have a time.

    Raises:
        TableError: the table cannot be read.
    """
    try:
        return [row for row in read_table(path).rows if row.status is Status.OK]
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
