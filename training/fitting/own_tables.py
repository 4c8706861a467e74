"""Read the tables of ``python -m microbench``, and find the tables of a system in either layout.

Fitted is the time of the kernels alone, because a prediction adds host time itself. A row of a GPU with only the time
from an idle device (host-bound) is kept as unusable, so that the card counts it. A row without a time (out of memory,
refused by the kernel) is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median

from fitting.public_tables import find_public, is_public
from fitting.tables import NO_PEAK, Row, Tables, find_imported
from microbench.attention import SETTING, read_recorded
from microbench.errors import TableError
from microbench.provenance import SUFFIX, Identity, read_provenance
from microbench.table import Measurement, read_table
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction, Operator, in_kernel
from predictor.core.costs.work import PRECISION_BYTES
from predictor.core.hardware.hardware import Quantity

Named = tuple[Path, Identity]
KINDS = ("operator", "collective")
# An operator of many short kernels: the time of its shortest calls from an idle device is host time.
HOST_OPERATOR = "rope"
FEWEST_CALLS = 5
ANOTHER_KERNEL = "ran {kernel}, in a table of another implementation of attention"
HOST_BOUND = "host-bound: launching took longer than the kernels, whose time is not known"


def is_own(folder: Path) -> bool:
    """Return whether a folder holds tables of microbench."""
    return any(any((folder / kind).glob(f"*{SUFFIX}")) for kind in KINDS)


def _operator(identity: Identity, path: Path) -> Operator:
    """Return the operator, in the implementation asked for, or collective of a table, its dimensions checked."""
    known = catalogue() if identity.kind == "operator" else COLLECTIVES
    operator = known.get(identity.name)
    if operator is None or operator.dimensions != identity.dimensions:
        known_as = f"dimensions {', '.join(operator.dimensions)}" if operator else "no such name"
        raise TableError(
            f"{path}: {identity.name} of dimensions {', '.join(identity.dimensions)}: the catalogue has {known_as}"
        )
    return in_kernel(operator, identity.settings.get(SETTING, ""))


def _row(operator: Operator, row: Measurement, unusable: str | None) -> Row:
    """Return a row to fit; its operator is in the implementation that the row says ran."""
    kernel, library = read_recorded(row.kernel)
    if operator.kernel and kernel != operator.kernel:
        unusable = ANOTHER_KERNEL.format(kernel=row.kernel)
    us = median(row.best_samples_us)
    return Row(
        in_kernel(operator, kernel), operator.full_name, row.direction, row.shape, us, kernel=library, unusable=unusable
    )


@dataclass(frozen=True, slots=True)
class OwnTables(Tables):
    """The tables of one device and precision in one results folder."""

    identities: tuple[Named, ...] = ()

    def paths(self) -> dict[str, list[Path]]:
        """Return the files of each regressor; attention in another implementation than the default has its own.

        Raises:
            TableError: a file is of no operator or collective that the catalogue knows.
        """
        result: dict[str, list[Path]] = {}
        for path, identity in self.identities:
            operator = _operator(identity, path)
            result.setdefault(operator.full_name if operator.kernel else operator.regressor_name, []).append(path)
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
                result.append(_row(operator, row, why))
        return result

    def attention_kernel(self) -> str | None:
        """Return the implementation that most rows of attention say ran where none was asked for; None if none say."""
        known = (
            read_recorded(row.kernel)[0]
            for path, identity in self.identities
            if (operator := _operator(identity, path)).fused_attention and not operator.kernel
            for row in _measurements(path)
        )
        counted = Counter(filter(None, known))
        return counted.most_common(1)[0][0] if counted else None

    def reference_us(self) -> dict[int, Quantity]:
        """Return the reference kernel's median time while the tables were measured, by the processes that ran it."""
        times: defaultdict[int, list[float]] = defaultdict(list)
        for path, identity in self.identities:
            processes = 1 if identity.kind == "operator" else prod(map(int, identity.worker.split("x")))
            for session in read_provenance(path).sessions:
                times[processes] += session.reference_us
        return {
            processes: Quantity(value=round(median(us), 3), source=f"median of {len(us)} beside the tables")
            for processes, us in sorted(times.items())
            if us
        }

    def launch_quantities(self) -> dict[str, Quantity] | None:
        """Return the host time of a kernel launch, forward and backward; none on a CPU, which launches no kernels."""
        quantities: dict[str, Quantity] = {}
        rows = [
            row
            for path, identity in self.identities
            if identity.name == HOST_OPERATOR and identity.device_kind == "cuda"
            for row in _measurements(path)
        ]
        for direction in Direction:
            host = [row.host_us for row in rows if row.direction is direction and row.host_us is not None]
            if len(host) >= FEWEST_CALLS:
                quantities |= launch_quantity(direction, median(host), f"host time to launch a RoPE {direction} pass")
        return quantities


def launch_quantity(direction: Direction, host_us: float, source: str) -> dict[str, Quantity]:
    """Return the host time of a launch in one direction, given that of all kernels of ``HOST_OPERATOR``."""
    kernels = catalogue()[HOST_OPERATOR].launches[direction is Direction.BACKWARD]
    source = f"{source}, {host_us:.1f} µs, over its {kernels} kernels"
    return {f"launch_{direction}_us": Quantity(value=round(host_us / kernels, 3), source=source)}


def _measurements(path: Path) -> Sequence[Measurement]:
    """Return the rows that have a time."""
    return [row for row in read_table(path).rows if row.status.is_timed]


def find_tables(
    path: Path, gpu: str, precisions: Sequence[str], say: Callable[[str], None] = lambda text: None
) -> list[Tables]:
    """Return the tables of a GPU per measured precision, in the layout of microbench or in an imported layout.

    Args:
        path: a results folder, or a cluster's folder of tables or its parent.
        gpu: the device.
        precisions: those that may be fitted, because the data sheet has their peaks.
        say: takes a line for tables that are not used, and for each that serves another precision than its own.

    Raises:
        FileNotFoundError: there is no such folder.
        TableError: a table's provenance is damaged, or none is of this device and one of these precisions.
    """
    if is_own(path):
        return find_own(path, gpu, precisions, say)
    return (find_public if is_public(path) else find_imported)(path, gpu, precisions, say)


def find_own(folder: Path, gpu: str, precisions: Sequence[str], say: Callable[[str], None]) -> list[Tables]:
    """Return the tables that microbench wrote of a device, per precision that has operators; see ``find_tables``.

    The time of a collective follows its bytes. So a precision without a table of its own takes that of another
    precision with elements as wide, or else that of MPI, which has no half precision.
    """
    paths = sorted(path for kind in KINDS for path in (folder / kind).glob("*.csv"))
    known = [(path, read_provenance(path).identity) for path in paths]
    here = [(path, identity) for path, identity in known if identity.device == gpu]
    fitted: list[OwnTables] = []
    for precision in precisions:
        operators = [(path, i) for path, i in here if i.kind == "operator" and i.precision == precision]
        if operators:
            fitted.append(OwnTables(folder, gpu, precision, (*operators, *_collectives(here, precision))))
    if not fitted:
        there = ", ".join(sorted({f"{identity.device} in {identity.precision}" for _, identity in known}))
        raise TableError(f"{folder}: no table of {gpu} in {' or '.join(precisions)}; tables there are of {there}")
    for line in dict.fromkeys(line for path, identity in known for line in _notes(path, identity, fitted)):
        say(line)
    return list(fitted)


def _collectives(here: Sequence[Named], precision: str) -> list[Named]:
    """Return the best table for a precision of every collective over every topology, where any serves."""
    usable = [named for named in here if named[1].kind == "collective" and _likeness(named[1], precision)]
    usable.sort(key=lambda named: _likeness(named[1], precision))
    return list({(identity.name, identity.worker): (path, identity) for path, identity in usable}.values())


def _likeness(identity: Identity, precision: str) -> int:
    """Return how well a collective's table serves a precision; 0: not at all."""
    if identity.precision == precision:
        return 3
    width = PRECISION_BYTES.get(identity.precision)
    if width is not None and width == PRECISION_BYTES.get(precision):
        return 2
    return int(identity.settings.get("backend") == "mpi")


def _notes(path: Path, identity: Identity, fitted: Sequence[OwnTables]) -> list[str]:
    """Return which other precisions a table serves, or why it serves none."""
    where = f"{path.parent.name}/{path.name}"
    users = [tables.precision for tables in fitted if path in dict(tables.identities)]
    if users:
        others = ", ".join(precision for precision in users if precision != identity.precision)
        measured = f"measured in {identity.precision}, since the time follows the bytes"
        return [f"{where} is used for {others}: {measured}"] if others else []
    gpu, precisions = fitted[0].gpu, ", ".join(tables.precision for tables in fitted)
    if identity.device != gpu:
        return [f"{where} is not used: it is of {identity.device}, the system has {gpu}"]
    if identity.kind == "operator":
        return [NO_PEAK.format(precision=identity.precision, gpu=gpu)]
    if any(_likeness(identity, tables.precision) for tables in fitted):
        return [f"{where} is not used: closer tables of {identity.name} over {identity.worker} serve {precisions}"]
    return [f"{where} is not used: measure it with --precision {fitted[0].precision}, as the operators were"]
