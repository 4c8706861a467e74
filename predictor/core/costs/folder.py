"""The files of a published system: checksums, and the donors of what it lacks.

system.yaml                                   peaks and links, the unit in every key, a source on every number
card.md                                       who measured it, rows kept and dropped, held-out errors
manifest.json                                 SHA-256 of every other file: a damaged or edited file does not load
operator/<gpu>_<regressor>_<precision>.json
operator/<gpu>_<attention>-<kernel>_<precision>.json   fused attention in another kernel than system.yaml names
nccl/<gpu>_<collective>_<precision>.json
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import yaml
from pydantic import ValidationError

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.errors import PublishedError
from predictor.core.base.read_yaml import first_problem
from predictor.core.base.yaml_depth import load_yaml
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import KERNEL_MARK, Direction, Operator
from predictor.core.costs.regressors import DirectionRegressor, RegressorFile, check_lengths
from predictor.core.costs.work import PRECISION_BYTES, SAME_RATE
from predictor.core.hardware.hardware import System

MANIFEST = "manifest.json"
CARD = "card.md"
HARDWARE = "system.yaml"
HELD_OUT = "held_out.json"  # errors and dropped rows of every column
MANIFEST_FORMAT = "estimate-train-time/manifest/1"
OPERATOR_FOLDER = "operator"
COLLECTIVE_FOLDER = "nccl"
REGRESSOR_FILE = "{gpu}_{regressor}_{precision}.json"
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_verified(folder: Path, name: str, manifest: dict[str, str]) -> bytes:
    """Return a published file's bytes after comparing them with the manifest.

    Raises:
        PublishedError: the file is missing, or not the one that was published.
    """
    path = folder / name
    if name not in manifest:
        raise PublishedError(
            f"{path} is not in {folder / MANIFEST}: publish the system again with python -m fitting fit"
        )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise PublishedError(f"{path} is missing although {MANIFEST} lists it; restore the published folder") from None
    if sha256(content).hexdigest() != manifest[name]:
        raise PublishedError(
            f"{path} is damaged or was edited by hand: its SHA-256 is not the one in {MANIFEST}; restore the file, or "
            f"vouch for the change with python -m fitting seal {folder}"
        )
    return content


def read_manifest(folder: Path) -> dict[str, str]:
    """Return file name → SHA-256 of a published folder.

    Raises:
        FileNotFoundError: the folder is not a published system.
        PublishedError: the manifest is damaged, or the system has no card.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a published system: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_bytes())
        files = manifest["files"]
        known = manifest["format"] == MANIFEST_FORMAT and all(isinstance(v, str) for v in files.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise PublishedError(f"{path} is damaged: expected format {MANIFEST_FORMAT}")
    if CARD not in files or not (folder / CARD).is_file():
        raise PublishedError(f"{folder} has no {CARD} that {MANIFEST} lists: a system without a card does not load")
    for name in files:
        if not (folder / name).is_file():
            raise PublishedError(f"{folder / name} is missing although {MANIFEST} lists it; restore the folder")
    return dict(files)


def read_hardware(folder: Path, manifest: dict[str, str]) -> System:
    """Return the hardware of a published system.

    Raises:
        PublishedError: the file is damaged.
    """
    content = read_verified(folder, HARDWARE, manifest)
    try:
        return System.model_validate(load_yaml(content, _YAML_LOADER))
    except ValidationError as error:
        raise PublishedError(f"{folder / HARDWARE}: {first_problem(error)}") from error


def donor_folder(folder: Path, name: str) -> Path:
    """Return the folder of a donor or of a calibrated system's base: beside it, else among the project's own.

    Raises:
        PublishedError: it is in neither place.
    """
    for candidate in (folder.parent / name, REGRESSORS_FOLDER / name):
        if (candidate / MANIFEST).is_file():
            return candidate
    raise PublishedError(
        f"{folder / HARDWARE} names the donor {name}, which is published neither in {folder.parent} nor in "
        f"{REGRESSORS_FOLDER}"
    )


def own_precisions(manifest: dict[str, str]) -> set[str]:
    """Return the precisions that a manifest lists operators in."""
    files = [name for name in manifest if name.startswith(f"{OPERATOR_FOLDER}/")]
    return {precision for precision in PRECISION_BYTES if any(name.endswith(f"_{precision}.json") for name in files)}


def measured_precisions(folder: Path) -> list[str]:
    """Return the precisions that a published system, or the donor of its operators, was measured in.

    Raises:
        FileNotFoundError: the folder is not a published system.
        PublishedError: its manifest or its hardware is damaged, or its donor is not there.
    """
    manifest = read_manifest(folder)
    precisions = own_precisions(manifest)
    hardware = read_hardware(folder, manifest)
    if hardware.calibration is not None:
        return measured_precisions(donor_folder(folder, hardware.calibration.base))
    if hardware.like is not None:
        measured = measured_precisions(donor_folder(folder, hardware.like))
        return [precision for precision in measured if precision in hardware.gpu.peak_tflop_per_s]
    if hardware.transfer is not None:
        transferred = own_precisions(read_manifest(donor_folder(folder, hardware.transfer.operators)))
        precisions |= transferred & hardware.gpu.peak_tflop_per_s.keys()
    return sorted(precisions)


class RegressorFiles:
    """The regressors of one published folder in one precision, each read once."""

    def __init__(self, folder: Path, manifest: dict[str, str], hardware: System, precision: str) -> None:
        """Read nothing yet; ``hardware`` is that of the measurements."""
        self.folder = folder
        self.hardware = hardware
        self.precision = precision
        self._precisions = (precision, *SAME_RATE.get(precision, ()))
        self.manifest = manifest
        self._read: dict[str, dict[Direction, DirectionRegressor]] = {}
        self._names: dict[str, list[str]] = {}

    def name(self, regressor: str) -> str:
        """Return the file of a regressor, relative to the folder, whether it is there or not.

        Where there is none in this precision, that of a precision at the same rate is taken.
        """
        kind = COLLECTIVE_FOLDER if regressor in COLLECTIVES else OPERATOR_FOLDER
        files = [
            f"{kind}/{REGRESSOR_FILE.format(gpu=self.hardware.gpu.name, regressor=regressor, precision=precision)}"
            for precision in self._precisions
        ]
        return next((file for file in files if file in self.manifest), files[0])

    def names(self, kind: str) -> list[str]:
        """Return the regressors of one kind (operator or nccl)."""
        known = self._names.get(kind)
        if known is None:
            known = self._names[kind] = self._listed(kind)
        return known

    def _listed(self, kind: str) -> list[str]:
        prefix = f"{kind}/{self.hardware.gpu.name}_"
        suffixes = [f"_{precision}.json" for precision in self._precisions]
        return sorted(
            {
                name.removeprefix(prefix).removesuffix(suffix)
                for name in self.manifest
                for suffix in suffixes
                if name.startswith(prefix) and name.endswith(suffix)
            }
        )

    def kernels(self, operator: Operator) -> list[str]:
        """Return the implementations of fused attention that were measured besides the system's own."""
        prefix = f"{operator.regressor_name}{KERNEL_MARK}"
        return [name.removeprefix(prefix) for name in self.names(OPERATOR_FOLDER) if name.startswith(prefix)]

    def read(self, operator: Operator, kernel: str = "") -> dict[Direction, DirectionRegressor]:
        """Return an operator's regressors by direction; none where there is no file.

        Args:
            operator: in whatever implementation.
            kernel: one of ``kernels``; empty: the system's own.

        Raises:
            PublishedError: the file is damaged.
        """
        name = f"{operator.regressor_name}{KERNEL_MARK}{kernel}" if kernel else operator.regressor_name
        if self.name(name) not in self.manifest:
            return {}
        if name not in self._read:
            self._read[name] = self._parse(operator, self.name(name))
        return self._read[name]

    def _parse(self, operator: Operator, name: str) -> dict[Direction, DirectionRegressor]:
        content = read_verified(self.folder, name, self.manifest)
        try:
            file = RegressorFile.model_validate_json(content)
            for model in file.directions.values():
                check_lengths(model, operator, len(file.members))
            return {
                d: DirectionRegressor(m, file.members, file.num_multiprocessors) for d, m in file.directions.items()
            }
        except ValueError as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else str(error)
            raise PublishedError(
                f"{self.folder / name} is not a regressor: {reason}; restore it, or publish the system again"
            ) from error


def answering_files(folder: Path, manifest: dict[str, str], hardware: System, precision: str) -> RegressorFiles:
    """Return the regressors of a folder, of a variant those of the system that it is like.

    Raises:
        PublishedError: that system is damaged, or not there.
    """
    if hardware.like is None:
        return RegressorFiles(folder, manifest, hardware, precision)
    base = donor_folder(folder, hardware.like)
    listed = read_manifest(base)
    return RegressorFiles(base, listed, read_hardware(base, listed), precision)
