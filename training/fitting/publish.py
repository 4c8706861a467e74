"""Write a published system: the same input gives the same bytes, and a killed run leaves the old folder as it was."""

from __future__ import annotations

import json
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from predictor.base.files import write_whole
from predictor.costs.collectives import COLLECTIVES
from predictor.costs.folder import (
    CARD,
    COLLECTIVE_FOLDER,
    HARDWARE,
    HELD_OUT,
    MANIFEST,
    MANIFEST_FORMAT,
    OPERATOR_FOLDER,
    REGRESSOR_FILE,
)
from predictor.costs.hardware import System
from predictor.costs.regressors import RegressorFile


def to_json(document: object) -> bytes:
    """Return JSON with one line per tree and a newline at the end."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return (text.replace("],[", "],\n[") + "\n").encode()


def regressor_path(file: RegressorFile) -> str:
    """Return the path of a regressor in its published folder."""
    kind = COLLECTIVE_FOLDER if file.name in COLLECTIVES else OPERATOR_FOLDER
    return f"{kind}/" + REGRESSOR_FILE.format(gpu=file.gpu, regressor=file.name, precision=file.precision)


def contents(system: System, files: list[RegressorFile], card: str, held_out: object) -> dict[str, bytes]:
    """Return every file of the published folder except its manifest."""
    result = {
        HARDWARE: hardware_yaml(system),
        CARD: card.encode(),
        HELD_OUT: (json.dumps(held_out, indent=1, allow_nan=False) + "\n").encode(),
    }
    for file in files:
        result[regressor_path(file)] = to_json(regressor_document(file))
    return result


def hardware_yaml(system: System) -> bytes:
    """Return ``system.yaml``: the known fields of the hardware."""
    content = system.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120).encode()


def regressor_document(file: RegressorFile) -> dict[str, Any]:
    """Return the content of a regressor's file, without the fields that are empty for most."""
    document = file.model_dump(mode="json")
    for model in document["directions"].values():
        for name in ("basis", "curves", "unseen_in_node"):
            if model[name] is None:
                del model[name]
        for interval in (model["interval"], *model["intervals"].values(), model.get("unseen_in_node")):
            if interval and not interval["transfer_error"]:
                del interval["transfer_error"]
    return document


def manifest_bytes(files: dict[str, bytes]) -> bytes:
    """Return the manifest: the SHA-256 of each file."""
    digests = {name: sha256(content).hexdigest() for name, content in sorted(files.items())}
    return (json.dumps({"format": MANIFEST_FORMAT, "files": digests}, indent=1) + "\n").encode()


def publish(folder: Path, files: dict[str, bytes]) -> None:
    """Write a new folder beside ``folder``, then replace that by it."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    building.chmod(0o755)
    try:
        for name, content in {**files, MANIFEST: manifest_bytes(files)}.items():
            path = building / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        retired = Path(f"{building}.old")
        if folder.exists():
            folder.replace(retired)
        building.replace(folder)
        shutil.rmtree(retired, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def seal(folder: Path) -> int:
    """Rewrite the manifest for the files in the folder; return their number.

    Raises:
        FileNotFoundError: the folder is not a published system.
    """
    if not (folder / HARDWARE).is_file():
        raise FileNotFoundError(f"{folder} is not a published system: it has no {HARDWARE}")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: (folder / name).read_bytes() for name in names if name != MANIFEST}
    write_whole(folder / MANIFEST, manifest_bytes(files))
    return len(files)
