"""Configurations to verify: any file that a prediction reads, with every key said, and its hash."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.wings import wing
from predictor.core.plan.loading import read_config
from predictor.core.predict.workloads import Kind, Workload
from predictor.core.schema.input_kind import is_hugectr
from predictor.evidence.verification.transformers import TRANSFORMER

SUFFIXES = (".yaml", ".yml", ".json")


class Recommenders(Protocol):
    """The wing of recommenders, which knows what runs them."""

    RECOMMENDER: Kind


class Configured(NamedTuple):
    """A configuration that is predicted and run.

    Attributes:
        name: of its file, without ending.
        content: its full form with defaults said, without system and budget.
        config_hash: SHA-256 of that.
        workload: what is predicted and run.
    """

    name: str
    content: dict[str, Any]
    config_hash: str
    workload: Workload

    @property
    def num_gpus(self) -> int:
        """Return the ranks that run it."""
        return self.workload.num_gpus


def hash_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a configuration's content."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def kind_of(content: Mapping[str, Any]) -> Kind | None:
    """Return the kind of a configuration; None where it is none."""
    recommender = cast("Recommenders", wing("recommenders")).RECOMMENDER
    return next((kind for kind in (recommender, TRANSFORMER) if kind.tells(content)), None)


def configured(name: str, content: dict[str, Any], base: Path, system: str | None = None) -> Configured:
    """Return a configuration, checked and on an open system.

    Args:
        name: for messages and tables.
        content: in any form.
        base: folder that paths in it are relative to.
        system: that predicts, instead of its own.

    Raises:
        ConfigError, PublishedError: as its kind, the name in front.
    """
    kind = kind_of(content) or TRANSFORMER  # which says what is missing
    try:
        full, workload = kind.opened(content, base, system)
    except (ConfigError, MissingKeyError) as error:
        raise ConfigError(f"{name}: {error}") from None
    except PublishedError as error:
        raise PublishedError(f"{name}: {error}") from None
    return Configured(name, full, hash_of(full), workload)


def configuration_files(paths: Sequence[str]) -> list[Path]:
    """Return files; a folder stands for the configurations in it.

    Raises:
        ConfigError: a folder has none, or two files have one name.
    """
    files: list[Path] = []
    for given in paths:
        path = Path(given)
        inside = sorted(entry for entry in path.glob("*") if entry.suffix in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"{path} has no configuration ({', '.join(SUFFIXES)})")
        files += inside
    names: dict[str, Path] = {}
    for file in files:
        if file.stem in names:
            raise ConfigError(f"{file} and {names[file.stem]} have one name, {file.stem}; results go by name")
        names[file.stem] = file
    return files


def read_configurations(paths: Sequence[str], system: str | None) -> list[Configured]:
    """Read configuration files and folders of them.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ConfigError, PublishedError: one cannot be predicted.
    """
    return [configured(path.stem, *_read(path), system) for path in configuration_files(paths)]


def _read(path: Path) -> tuple[dict[str, Any], Path]:
    """Return the content of a file, and the folder that its paths are relative to."""
    if path.suffix == ".json" and path.is_file():
        content = read_mapping(path)
        if is_hugectr(content):
            return content, path.resolve().parent
    return read_config(path)
