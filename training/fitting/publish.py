"""Write a published system: the same input gives the same bytes, and a killed run leaves the old folder as it was."""

from __future__ import annotations

import json
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import PublishedError
from predictor.core.base.files import write_whole
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.folder import (
    CARD,
    COLLECTIVE_FOLDER,
    HARDWARE,
    HELD_OUT,
    MANIFEST,
    MANIFEST_FORMAT,
    OPERATOR_FOLDER,
    REGRESSOR_FILE,
    read_hardware,
    read_manifest,
    read_verified,
)
from predictor.core.costs.operator import KERNEL_MARK
from predictor.core.costs.regressors import RegressorFile
from predictor.core.hardware.hardware import System

SOURCE_LINES = ("- Measured by: ", "- Source and licence: ")  # of a card


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


def completed(files: dict[str, bytes], system: System, other: Path) -> dict[str, bytes]:
    """Return a system's files with the regressors that it lacks from another system of the same GPU, sources named.

    Fused attention of another implementation than the system's own answers for runs that name that one.

    Args:
        files: of ``contents``.
        system: that they are of.
        other: folder of a published system.

    Raises:
        FileNotFoundError: the folder is not a published system.
        PublishedError: it is damaged, or of another GPU.
    """
    manifest = read_manifest(other)
    hardware = read_hardware(other, manifest)
    if hardware.gpu.name != system.gpu.name:
        raise PublishedError(
            f"{other} is of {hardware.gpu.name}; {system.gpu.name} keeps regressors of its own GPU only"
        )
    kept = {
        name: path
        for name in sorted(manifest)
        if name.startswith((f"{OPERATOR_FOLDER}/", f"{COLLECTIVE_FOLDER}/"))
        and (path := _kept_as(name, hardware, system)) is not None
        and path not in files
    }
    if not kept:
        return files
    sources = [
        line for line in read_verified(other, CARD, manifest).decode().splitlines() if line.startswith(SOURCE_LINES)
    ]
    section = [f"## Kept from {hardware.name}: not measured here", *sources, *(f"- {path}" for path in kept.values())]
    text = files[CARD].decode() + "\n" + "\n".join(section) + "\n"
    contents_kept = {path: read_verified(other, name, manifest) for name, path in kept.items()}
    for name, path in kept.items():
        if path != name:
            regressor = json.loads(contents_kept[path])
            renamed = f"{regressor['name']}{KERNEL_MARK}{hardware.attention_kernel}"
            contents_kept[path] = to_json(regressor | {"name": renamed})
    return {**files, CARD: text.encode(), **contents_kept}


def _kept_as(name: str, hardware: System, system: System) -> str | None:
    """Return the path of another system's regressor among a system's own; None where it has none.

    Args:
        name: of the regressor in the other system.
        hardware: the other system.
        system: the system itself.
    """
    if hardware.attention_kernel == system.attention_kernel:
        return name
    for operator in catalogue().values():
        start = f"{OPERATOR_FOLDER}/{hardware.gpu.name}_{operator.name}"
        if operator.fused_attention and name.startswith(f"{start}_"):
            kernel = hardware.attention_kernel
            return None if kernel is None else f"{start}{KERNEL_MARK}{kernel}{name.removeprefix(start)}"
        if operator.fused_attention and name.startswith(f"{start}{KERNEL_MARK}{system.attention_kernel}_"):
            return name.replace(f"{KERNEL_MARK}{system.attention_kernel}_", "_", 1)
    return name


def publish_copy(source: Path, out: Path, *, replace: bool) -> None:
    """Publish a folder that was fitted elsewhere.

    Raises:
        FileNotFoundError: the source is not a published system.
        PublishedError: it is damaged, or the system is published already and may not be replaced.
    """
    manifest = read_manifest(source)
    if out.exists() and not replace:
        raise PublishedError(f"{out} is published already and stays as it is; --replace replaces it")
    publish(out, {name: read_verified(source, name, manifest) for name in manifest})


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
