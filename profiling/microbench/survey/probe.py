"""Name the GPU in a separate process: a process that opens a GPU holds some of its memory until it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from microbench.device import find_device, library_versions
from microbench.errors import MeasureError, TableError
from microbench.provenance import Closed, read_provenance
from microbench.system import identity, read_datasheet, sheet_of, with_datasheet

PROBE_S = 120.0


class Probe(Closed):
    """Inputs of a survey's plan: the GPU, its precisions, the identity of its tables, and its system file.

    Attributes:
        system: the system file before any peak is measured: the driver's description, and the data sheet where there
            is one of this GPU. With it the rows of a survey that is cut off at any moment can be published.
    """

    device: str
    driver: str | None
    versions: dict[str, str]
    precisions: tuple[str, ...]
    system: dict[str, Any]


def find_here(datasheets: Path) -> Probe:
    """Return this machine's GPU; opens it.

    Raises:
        MeasureError: there is no torch, or no GPU.
    """
    device = find_device("cuda")
    path = sheet_of(device, datasheets)
    document = identity(device, path.stem if path else device.name)
    return Probe(
        device=device.name,
        driver=device.driver,
        versions=library_versions("cuda"),
        precisions=device.precisions,
        system=with_datasheet(document, read_datasheet(path), device) if path else document,
    )


def probe(datasheets: Path) -> Probe:
    """Return this machine's GPU as a separate process sees it.

    Args:
        datasheets: folder of system files that state data sheets.

    Raises:
        MeasureError: it sees no GPU, or does not answer.
    """
    words = [sys.executable, "-m", __name__, str(datasheets)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_S, check=False)
        return Probe.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"the GPU did not answer within {PROBE_S:.0f} s") from None
    except ValidationError:
        reason = (done.stderr.strip() or "nothing").splitlines()[-1].removeprefix("error: ")
        raise MeasureError(reason) from None


def why_not_continued(earlier: Path, here: Probe) -> str | None:
    """Return the difference that keeps an earlier survey's tables from being continued here; None without one."""
    for table in sorted((earlier / "operator").glob("*.csv")):
        try:
            identity = read_provenance(table).identity
        except TableError as error:
            return str(error)
        for field in ("device", "driver", "versions"):
            was, is_now = getattr(identity, field), getattr(here, field)
            if was != is_now:
                return f"{earlier}: {field} was {was}, is {is_now}"
    return None


if __name__ == "__main__":
    try:
        sys.stdout.write(find_here(Path(sys.argv[1])).model_dump_json())
    except MeasureError as error:
        sys.exit(f"error: {error}")
