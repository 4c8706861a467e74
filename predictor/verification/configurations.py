"""Configurations to verify: any file that a prediction reads, in its full form with every key said, and its hash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from predictor.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.configuration import short_config
from predictor.configuration.loading import (
    Loaded,
    completed,
    find_folder,
    of_trainer,
    prepare,
    published,
    read_config,
)
from predictor.configuration.sections import RunConfig, validate
from predictor.configuration.telling import is_of_trainer

SUFFIXES = (".yaml", ".yml", ".json")
# Of a machine or of a bill; a run is the same on any system.
NOT_OF_THE_RUN = {"system", "gpu", "budget"}


class Configured(NamedTuple):
    """A configuration that is predicted and run.

    Attributes:
        name: of its file, without ending.
        content: its full form with defaults said, without system and budget.
        config_hash: SHA-256 of that.
    """

    name: str
    content: dict[str, Any]
    config_hash: str
    loaded: Loaded

    @property
    def num_gpus(self) -> int:
        """Return the ranks that run it."""
        return self.loaded.run.layout.num_gpus


def on_system(content: dict[str, Any], system: str | None) -> dict[str, Any]:
    """Return a configuration on another system, its layout as it is: it has run, or will run, like that.

    Args:
        content: in any form.
        system: name, or folder from the current one; None for the configuration's own.

    Raises:
        ConfigError: there is no such system.
    """
    if system is None:
        return content
    folder = str(find_folder(system, Path.cwd()))
    if is_of_trainer(content):
        asked = content.get("prediction") or {}
        return {**content, "prediction": {**asked, "system": folder}} if isinstance(asked, dict) else content
    full = short_config.expand(content) if short_config.is_short(content) else content
    return {**full, "system": folder, "gpu": None}


def _full_form(content: dict[str, Any], base: Path) -> RunConfig:
    content, _ = of_trainer(content, base)
    if short_config.is_short(content):
        return validate(short_config.expand(content), is_short=True)
    whole, _ = completed(content, base)
    return validate(whole)


def hash_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a configuration's content."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def configured(name: str, content: dict[str, Any], base: Path, system: str | None = None) -> Configured:
    """Return a configuration, checked and on an open system.

    Args:
        name: for messages and tables.
        content: in any form.
        base: folder that paths in it are relative to.
        system: that predicts, instead of its own.

    Raises:
        ConfigError, PublishedError: as ``prepare``, the name in front.
    """
    try:
        content = on_system(content, system)
        if not ("system" in content or is_of_trainer(content) or short_config.is_short(content)):
            raise ConfigError(f"system is missing; --system NAME says which published system predicts: {published()}")
        config = _full_form(content, base)
        full = config.model_dump(mode="json", exclude=NOT_OF_THE_RUN, exclude_none=True)
        return Configured(name, full, hash_of(full), prepare(content, base))
    except (ConfigError, MissingKeyError) as error:
        raise ConfigError(f"{name}: {error}") from None
    except PublishedError as error:
        raise PublishedError(f"{name}: {error}") from None


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
    return [configured(path.stem, *read_config(path), system) for path in configuration_files(paths)]
