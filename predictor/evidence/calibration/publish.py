"""Write a calibrated system: a folder that predicts like any other and names the system whose regressors answer."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import yaml
from pydantic import ValidationError

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import ConfigError
from predictor.core.base.files import atomic_folder, write_whole
from predictor.core.costs.folder import CARD, HARDWARE, MANIFEST, MANIFEST_FORMAT
from predictor.core.hardware.hardware import System
from predictor.evidence.calibration.answer import Calibrated
from predictor.evidence.calibration.text import MEANINGS, common_line, error_line, factor_rows, run_rows


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())


def card(calibrated: Calibrated, system: System) -> str:
    """Return the card's text."""
    fitted, base = calibrated.fitted, calibrated.hardware
    sources = sorted({run.source for run in calibrated.observations})
    lines = [
        f"# {system.name}: {base.name}, calibrated",
        "",
        (
            f"Regressors and hardware are those of {base.name}; see its card. {len(calibrated.observations)} measured "
            "step(s) moved the factors below, which multiply its times; docs/calibration.md says how."
        ),
        "",
        f"- Error: {error_line(calibrated)}.",
        f"- In common: {common_line(calibrated)}.",
        (
            f"- A run that took no part: ±{100 * fitted.residual:.1f} % (standard deviation, logarithmic), and what "
            "the factors' intervals leave open."
        ),
        f"- Measured in: {', '.join(map(_cell, sources))}.",
        *(f"- Note: {note}." for note in calibrated.notes),
        "",
        "## Factors",
        "",
        "| component | | factor | 90 % interval | known before within |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {name} | {MEANINGS[name]} | {factor:.3f} | {low:.3f} – {high:.3f} | ×{known:.2f} |"
            for name, factor, low, high, known in factor_rows(calibrated)
        ),
        "",
        "## Runs",
        "",
        (
            "Errors are predicted over measured, minus one; *left out* is the error with the factors of all other "
            "configurations' runs."
        ),
        "",
        "| run | measured s | published | calibrated | left out | high ÷ low, published | calibrated |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {_cell(name)} | {seconds:.4g} | {before:+.1%} | {after:+.1%} | {left_out:+.1%} | {wide:.2f} | "
            f"{narrow:.2f} |"
            for name, seconds, before, after, left_out, wide, narrow in run_rows(calibrated)
        ),
    ]
    if calibrated.failed:
        lines += ["", "## Not used", "", *(f"- {_cell(failed.name)}: {failed.reason}" for failed in calibrated.failed)]
    return "\n".join(lines) + "\n"


WIDTH = 120


def base_name(folder: Path, out: Path) -> str:
    """Return how a calibrated system's file names the published system: by name, or by the way to its folder."""
    if folder.resolve().parent == REGRESSORS_FOLDER.resolve():
        return folder.name
    return Path(os.path.relpath(folder.resolve(), out.resolve().parent)).as_posix()


def _holds_another_system(out: Path) -> bool:
    """Return whether a folder's hardware is that of a system that no calibration wrote; half a file is none."""
    try:
        system = System.model_validate(yaml.safe_load((out / HARDWARE).read_bytes()))
    except (FileNotFoundError, UnicodeDecodeError, yaml.YAMLError, ValidationError):
        return False
    return system.calibration is None


def _check_place(out: Path, base: Path) -> None:
    """Check that nothing but an earlier calibration, whole or damaged, is overwritten.

    Raises:
        ConfigError: the place has the name of a published system, or holds something else.
    """
    if out.resolve().name == base.name or (REGRESSORS_FOLDER / out.resolve().name).is_dir():
        raise ConfigError(f"--out {out} has the name of a published system; a calibrated one needs a name of its own")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    inside = {path.name for path in out.iterdir()}
    if inside - {HARDWARE, CARD, MANIFEST} or _holds_another_system(out):
        raise ConfigError(f"--out {out} is not empty and no calibrated system; name another folder")


def publish(calibrated: Calibrated, out: Path) -> list[Path]:
    """Write a calibrated system as a whole and return its files; an earlier one stays until the new one is complete.

    Raises:
        ConfigError: it would overwrite something else.
        OSError: it cannot be written.
    """
    _check_place(out, calibrated.folder)
    calibration = calibrated.calibration(base_name(calibrated.folder, out))
    system = calibrated.hardware.model_copy(update={"name": out.resolve().name, "calibration": calibration})
    document = system.model_dump(mode="json", exclude_none=True)
    hardware = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=WIDTH)
    files = {HARDWARE: hardware.encode(), CARD: card(calibrated, system).encode()}
    digests = {name: sha256(content).hexdigest() for name, content in sorted(files.items())}
    manifest = json.dumps({"format": MANIFEST_FORMAT, "files": digests}, indent=1) + "\n"
    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(place) as building:
        for name, content in {**files, MANIFEST: manifest.encode()}.items():
            write_whole(building / name, content)
    return [out / name for name in (HARDWARE, CARD, MANIFEST)]
