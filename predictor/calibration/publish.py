"""Write a calibrated system: a folder that predicts like any other and names the system whose regressors answer."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path

import yaml

from predictor.base.bundled import REGRESSORS_FOLDER
from predictor.base.errors import ConfigError
from predictor.base.files import write_whole
from predictor.calibration.answer import Calibrated
from predictor.calibration.card import card
from predictor.costs.folder import CARD, HARDWARE, MANIFEST, MANIFEST_FORMAT, read_hardware, read_manifest

WIDTH = 120


def base_name(folder: Path, out: Path) -> str:
    """Return how a calibrated system's file names the published system: by name, or by the way to its folder."""
    if folder.resolve().parent == REGRESSORS_FOLDER.resolve():
        return folder.name
    return Path(os.path.relpath(folder.resolve(), out.resolve().parent)).as_posix()


def _check_place(out: Path, base: Path) -> None:
    """Check that nothing but an earlier calibration is overwritten.

    Raises:
        ConfigError: the place has the name of the published system, or holds something else.
    """
    if out.resolve().name == base.name or (REGRESSORS_FOLDER / out.resolve().name).is_dir():
        raise ConfigError(f"--out {out} has the name of a published system; a calibrated one needs a name of its own")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    inside = {path.name for path in out.iterdir()}
    if inside and not (MANIFEST in inside and read_hardware(out, read_manifest(out)).calibration is not None):
        raise ConfigError(f"--out {out} is not empty and no calibrated system; name another folder")


def publish(calibrated: Calibrated, out: Path) -> list[Path]:
    """Write a calibrated system and return its files.

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
    out.mkdir(parents=True, exist_ok=True)
    for name, content in {**files, MANIFEST: manifest.encode()}.items():
        write_whole(out / name, content)
    return [out / name for name in (HARDWARE, CARD, MANIFEST)]
