"""Name the GPU in a separate process: a process that opens a GPU holds some of its memory until it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from microbench.device import find_device, library_versions
from microbench.errors import MeasureError, TableError
from microbench.provenance import Closed, read_provenance

PROBE_S = 120.0


class Probe(Closed):
    """Inputs of a survey's plan: the GPU, its precisions, and the identity of its tables."""

    device: str
    driver: str | None
    versions: dict[str, str]
    precisions: tuple[str, ...]


def look() -> Probe:
    """Return what is here; opens the GPU.

    Raises:
        MeasureError: there is no torch, or no GPU.
    """
    device = find_device("cuda")
    return Probe(
        device=device.name, driver=device.driver, versions=library_versions("cuda"), precisions=device.precisions
    )


def probe() -> Probe:
    """Return what a process of its own sees.

    Raises:
        MeasureError: it sees no GPU, or does not answer.
    """
    words = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_S, check=False)
        return Probe.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"the GPU did not answer within {PROBE_S:.0f} s") from None
    except ValidationError:
        said = (done.stderr.strip() or "nothing").splitlines()[-1].removeprefix("error: ")
        raise MeasureError(said) from None


def why_anew(earlier: Path, here: Probe) -> str | None:
    """Return why an earlier survey's tables cannot go on here; None where they can."""
    for table in sorted((earlier / "operator").glob("*.csv")):
        try:
            identity = read_provenance(table).identity
        except TableError as error:
            return str(error)
        for field, was in (("device", identity.device), ("driver", identity.driver), ("versions", identity.versions)):
            if was != getattr(here, field):
                return f"{earlier}: {field} was {was}, is {getattr(here, field)}"
    return None


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(look().model_dump(mode="json")))
    except MeasureError as error:
        sys.exit(f"error: {error}")
