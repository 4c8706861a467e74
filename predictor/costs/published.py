"""A published system: a folder of regressors with its hardware, its card and a manifest that vouches for every file.

system.yaml                                   peaks and links, the unit in every key, a source on every number
card.md                                       who measured it, rows kept and dropped, held-out errors
manifest.json                                 SHA-256 of every other file: a damaged or edited file does not load
operator/<gpu>_<regressor>_<precision>.json
nccl/<gpu>_<collective>_<precision>.json
"""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import yaml
from pydantic import ValidationError

from predictor.costs.collectives import COLLECTIVES, Topology
from predictor.costs.cost import ZERO, Cost
from predictor.costs.hardware import System
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.regressors import DirectionRegressor, Outside, RegressorFile, check_lengths
from predictor.errors import PublishedError

MANIFEST = "manifest.json"
CARD = "card.md"
MANIFEST_FORMAT = "estimate-train-time/manifest/1"
OPERATOR_FOLDER = "operator"
COLLECTIVE_FOLDER = "nccl"
# A file's stem: gpu, regressor and precision, joined by underscores.
REGRESSOR_FILE = "{gpu}_{regressor}_{precision}.json"


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


def measured_precisions(folder: Path) -> list[str]:
    """Return the precisions that somebody measured on a published system."""
    names = (name for name in read_manifest(folder) if name.startswith(f"{OPERATOR_FOLDER}/"))
    return sorted({name.removesuffix(".json").rpartition("_")[2] for name in names})


class PublishedSystem:
    """Times operators and collectives on one published system in one precision; remembers every answer."""

    def __init__(self, folder: Path, precision: str) -> None:
        """Open a published folder; regressors are read when first asked for.

        Raises:
            FileNotFoundError: the folder is not a published system.
            PublishedError: a file is damaged, or nobody measured this precision.
        """
        self.folder = folder
        self.precision = precision
        self._manifest = read_manifest(folder)
        content = read_verified(folder, "system.yaml", self._manifest)
        try:
            self.system = System.model_validate(yaml.load(content, Loader=_YAML_LOADER))
        except ValidationError as error:
            raise PublishedError(f"{folder / 'system.yaml'}: {error.errors()[0]['msg']}") from error
        read_verified(folder, CARD, self._manifest)
        measured = measured_precisions(folder)
        if precision not in measured:
            raise PublishedError(
                f"precision is {precision}; {self.name} was measured in {', '.join(measured) or 'none'}"
            )
        self._regressors: dict[str, dict[Direction, DirectionRegressor]] = {}
        self._answers: dict[tuple[str, Direction, Shape], Cost] = {}

    @property
    def name(self) -> str:
        """Return the system's name."""
        return self.system.name

    @property
    def gpu(self) -> str:
        """Return the GPU's name as the files spell it."""
        return self.system.gpu.name

    def cost(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        """Return the cost of one call.

        Raises:
            PublishedError: the operator has no regressor here, or not for this direction.
        """
        key = (operator.name, direction, shape)
        answer = self._answers.get(key)
        if answer is None:
            answer = self.regressor(operator, direction).answer(operator, direction, shape)
            self._answers[key] = answer
        return answer

    def forget(self) -> None:
        """Forget every answer; what was loaded stays loaded."""
        self._answers.clear()

    def collective(self, name: str, size_bytes: float, topology: Topology) -> Cost:
        """Return the cost of one collective; a group of one rank, or nothing to send, costs nothing."""
        if topology.ranks < 2 or size_bytes <= 0:
            return ZERO
        shape = (int(size_bytes), topology.nodes, topology.gpus_per_node)
        return self.cost(COLLECTIVES[name], Direction.FORWARD, shape)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        """Return how far outside what was measured a call lies; None inside."""
        return self.regressor(operator, direction).outside(operator, direction, shape)

    def regressor(self, operator: Operator, direction: Direction) -> DirectionRegressor:
        """Return the regressor that answers for an operator.

        Raises:
            PublishedError: there is none, or its file is damaged.
        """
        name = operator.regressor_name
        if name not in self._regressors:
            self._regressors[name] = self._load(operator)
        try:
            return self._regressors[name][direction]
        except KeyError:
            raise PublishedError(f"{self.name} has no {direction} regressor for {operator.name}") from None

    def _load(self, asked: Operator) -> dict[Direction, DirectionRegressor]:
        regressor = asked.regressor_name
        name = self._file_name(regressor)
        if name not in self._manifest:
            known = ", ".join(self.regressor_names(name.partition("/")[0]))
            raise PublishedError(f"{self.name} has no {self.precision} regressor for {regressor}; it has {known}")
        content = read_verified(self.folder, name, self._manifest)
        try:
            file = RegressorFile.model_validate_json(content)
            for model in file.directions.values():
                check_lengths(model, asked, len(file.members))
            return {
                d: DirectionRegressor(m, file.members, file.num_multiprocessors) for d, m in file.directions.items()
            }
        except ValueError as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
            raise PublishedError(
                f"{self.folder / name} is not a regressor: {reason}; restore it, or publish the system again"
            ) from error

    def regressor_path(self, operator: Operator) -> Path:
        """Return the published file that answers for an operator, whether it is there or not."""
        return self.folder / self._file_name(operator.regressor_name)

    def _file_name(self, regressor: str) -> str:
        kind = COLLECTIVE_FOLDER if regressor in COLLECTIVES else OPERATOR_FOLDER
        return f"{kind}/" + REGRESSOR_FILE.format(gpu=self.gpu, regressor=regressor, precision=self.precision)

    def regressor_names(self, kind: str) -> list[str]:
        """Return the regressors of one kind (operator or nccl) in this precision."""
        prefix, suffix = f"{kind}/{self.gpu}_", f"_{self.precision}.json"
        return sorted(
            name.removeprefix(prefix).removesuffix(suffix)
            for name in self._manifest
            if name.startswith(prefix) and name.endswith(suffix)
        )


_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@lru_cache(maxsize=32)
def open_system(folder: Path, precision: str) -> PublishedSystem:
    """Open a published system once per process."""
    return PublishedSystem(folder, precision)
