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
from predictor.evidence.calibration.card import card

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
