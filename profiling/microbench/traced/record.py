"""Record the traces of one training run into a folder, MODEL/PRECISION."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from importlib.metadata import version
from pathlib import Path

from microbench.device import Device, commit, library_versions
from microbench.errors import MeasureError
from microbench.provenance import now
from microbench.traced.processes import run_ranks
from microbench.traced.settings import StepTimes, TraceRecord, TraceSettings, write_json

TIMEOUT_S = 900.0


def record_run(settings: TraceSettings, device: Device, out: Path) -> tuple[Path, TraceRecord]:
    """Train on every rank, write their traces, and return the folder and its record.

    Raises:
        MeasureError: a rank failed, or the folder cannot be written.
    """
    folder = out / settings.model / settings.precision
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            record = _record_in(settings, device, Path(scratch))
            for path in sorted(Path(scratch).iterdir()):
                if path.name.startswith(("rank-", "execution-", "record.json")):
                    shutil.move(path, folder / path.name)
    except OSError as error:
        raise MeasureError(f"{folder}: {error.strerror}") from None
    return folder, record


def _record_in(settings: TraceSettings, device: Device, scratch: Path) -> TraceRecord:
    write_json(scratch / "settings.json", settings)
    arguments = [str(scratch / "settings.json"), str(scratch)]
    run_ranks("microbench.traced.rank", arguments, settings.ranks, settings.threads, TIMEOUT_S)
    session = library_versions(settings.device)
    times = [json.loads((scratch / f"steps-{rank}.json").read_bytes()) for rank in range(settings.ranks)]
    record = TraceRecord(
        settings=settings,
        device=device.name,
        versions={**session, **_transformers_version(settings)},
        host=socket.gethostname(),
        commit=commit(),
        finished=now(),
        steps=tuple(StepTimes.model_validate(entry) for entry in times),
    )
    write_json(scratch / "record.json", record)
    return record


def _transformers_version(settings: TraceSettings) -> dict[str, str]:
    if settings.model in ("vgg16", "tiny"):
        return {}
    return {"transformers": version("transformers")}
