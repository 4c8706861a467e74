"""Publish a system without measurements: its data sheet, its donors, and the measured error of such a transfer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fitting.print_tables import markdown
from fitting.publish import hardware_yaml, publish
from fitting.systems import SystemFileError, SystemSource
from predictor.core.costs.folder import CARD, HARDWARE, MANIFEST, donor_folder, own_precisions
from predictor.core.costs.published import read_hardware, read_manifest
from predictor.core.costs.transfer_errors import TRANSFER_ERROR_FORMAT
from predictor.core.hardware.hardware import Quantity, System
from predictor.core.hardware.host_processor import COPIED

INTRODUCTION = """\
This system was not measured. Its operators are transferred from a donor, a measured system: each term of the donor's
physics is scaled by the ratio of the peaks that bound it. Collectives take the time of their bytes over the links of
this system. On the donor's GPU an answer keeps its source; every other answer is analytic, and its 90 % interval is
widened by the error below. The terms and their scaling: docs/adr/0013-transfer.md.
"""
VARIANT = """\
This system was not measured. {like}, of a related GPU, answers for it: costs that depend on no number that differs are
{like}'s own; each term of the others is scaled by the ratio of the numbers that bound it, is analytic, and its 90 %
interval is widened by the error of such a transfer. The terms and their scaling: docs/adr/0013-transfer.md.
"""
ERRORS = """\
Each measured system was predicted from the fit of the other and compared with its rows; every kernel shape counts
once. *MAPE* and *median* are percent of the measured time, *bias* is the median of log(measured / predicted),
*interval* the 90 % quantile of its absolute value. The interval of a transferred answer is widened by the larger
quantile over both GPUs and directions, by at least {compute} for matrix products and {stream} for streams. Two GPUs of
the same vendor, a generation apart, were measured; other transfers may err more.
"""
LINKS = """\
Every measured collective was timed by its bytes over the links, at the efficiency of another collective of the system.
"""


def read_errors(path: Path) -> dict[str, Any]:
    """Read what ``transfer-error`` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        SystemFileError: it is something else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; python -m fitting transfer-error --out writes it")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != TRANSFER_ERROR_FORMAT:
        raise SystemFileError(f"{path}: expected format {TRANSFER_ERROR_FORMAT}")
    return document


def quantities(system: System) -> Iterator[tuple[str, Quantity]]:
    """Yield the name and the quantity of every number of a system."""
    for section in (system.gpu, system.links):
        for name in type(section).model_fields:
            value = getattr(section, name)
            if isinstance(value, Quantity):
                yield name, value
            elif isinstance(value, dict):
                yield from ((f"{name} {key}", quantity) for key, quantity in value.items())
    yield from system.host.items()


FORMATS = {"mape": ".1f", "median": ".1f", "bias": "+.2f", "log_error": ".2f"}


def _errors(entry: dict[str, Any], keys: Iterable[str] = FORMATS) -> list[str]:
    return [format(entry[key], FORMATS[key]) if key in entry else "" for key in keys]


def _operators(errors: dict[str, Any]) -> list[str]:
    entries = sorted(errors["operator_columns"], key=lambda e: (e["kind"], e["regressor"], e["direction"]))
    lines = [
        [f"{e['regressor']} {e['direction']}", f"{e['from']} → {e['to']}", e["kind"], e["shapes"], *_errors(e)]
        for e in entries
    ]
    lines += [[f"mean of {kind}", "", "", "", *_errors(means)] for kind, means in errors["mean"].items()]
    return markdown(("regressor", "from → to", "kind", "shapes", "MAPE", "median", "bias", "interval"), lines, words=3)


def _collectives(errors: dict[str, Any]) -> list[str]:
    lines = [
        [e["system"], f"{e['from']} → {e['to']}", e["topology"], *_errors(e, ("mape", "bias", "log_error"))]
        for e in errors["collective_columns"]
    ]
    return markdown(("system", "from → to", "nodes × GPUs", "MAPE", "bias", "interval"), lines, words=3)


def _numbers(system: System) -> list[str]:
    return [
        f"- `gpus_per_node`: {system.gpus_per_node}, wired {system.links.wiring}",
        *(f"- `{name}`: {quantity.value:g} – {quantity.source}" for name, quantity in quantities(system)),
    ]


def variant_card(source: SystemSource, system: System) -> str:
    """Return the card of a system that is like another."""
    lines = [
        f"# {system.name}: {system.gpu.name}, like {system.like}",
        "",
        VARIANT.format(like=system.like),
        "## Origin",
        *source.provenance.lines(),
        "",
        "## Numbers",
        *_numbers(system),
    ]
    return "\n".join(lines) + "\n"


def datasheet_card(source: SystemSource, system: System, errors: dict[str, Any]) -> str:
    """Return the card of a system without measurements."""
    if system.like is not None:
        return variant_card(source, system)
    donors, provenance = system.transfer, source.provenance
    assert donors is not None
    lines = [
        f"# {system.name}: {system.gpu.name}, from its data sheet",
        "",
        INTRODUCTION,
        "## Donors",
        f"- Operators and host time of a launch: {donors.operators}.",
        f"- Efficiency of the links inside a node: {donors.intra_node}.",
        f"- Efficiency of the network between nodes: {donors.inter_node}.",
        *provenance.lines(),
        "",
        "## Numbers",
        *_numbers(system),
        "",
        "## Error of a transferred operator",
        ERRORS.format(**errors["constants"]["kinds"]),
        *_operators(errors),
        "",
        "## Error of a collective timed by its links",
        LINKS,
        *_collectives(errors),
    ]
    return "\n".join(lines) + "\n"


def with_donor_host(hardware: System, out: Path) -> System:
    """Return a system with the launch times of the system that it is like, or of its operators' donor.

    Raises:
        SystemFileError: the system's file names no donor.
        PublishedError: the donor is not published.
    """
    if hardware.transfer is None:
        raise SystemFileError(
            f"{hardware.name} has no transfer section, which names the donors of a system without measurements"
        )
    folder = donor_folder(out, hardware.like or hardware.transfer.operators)
    donor = read_hardware(folder, read_manifest(folder))
    host = {
        name: Quantity(value=quantity.value, source=f"{COPIED}{donor.name}: {quantity.source}")
        for name, quantity in donor.host.items()
    }
    return hardware.model_copy(update={"host": host | hardware.host})


def is_measured(folder: Path) -> bool:
    """Return whether a folder is a published system with measured operators.

    Raises:
        PublishedError: it is published, but its manifest is damaged.
    """
    return (folder / MANIFEST).is_file() and bool(own_precisions(read_manifest(folder)))


def publish_datasheet(source: SystemSource, errors: dict[str, Any], out: Path) -> Sequence[str]:
    """Publish a system from its data sheet; return the names of its files.

    Raises:
        SystemFileError: the system's file names no donor.
        PublishedError: a donor is not published.
    """
    system = with_donor_host(source.hardware, out)
    assert system.transfer is not None
    for donor in (system.transfer.intra_node, system.transfer.inter_node):
        donor_folder(out, donor)
    files = {HARDWARE: hardware_yaml(system), CARD: datasheet_card(source, system, errors).encode()}
    publish(out, files)
    return sorted(files)
