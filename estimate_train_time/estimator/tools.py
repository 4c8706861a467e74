"""Read a configuration, and find bundled data by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from predictor.core.base.bundled import DATA_FOLDER, REGRESSORS_FOLDER, systems
from predictor.core.base.errors import ConfigError, nearest
from predictor.core.base.read_yaml import read_mapping


def config_decoder(file_path: str) -> dict[str, Any]:
    """Return what a YAML configuration file says, unchecked.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ValueError: it is empty, or is no mapping.
    """
    return read_mapping(Path(file_path))


def get_bundled_data_path() -> str:
    """Return the folder of all bundled data."""
    return str(DATA_FOLDER)


def get_bundled_regressors_path(cluster_name: str | None = None) -> str:
    """Return the folder of the published systems, or of one of them.

    Raises:
        ValueError: no system of this name is published; the message lists those that are.
    """
    if cluster_name is None:
        return str(REGRESSORS_FOLDER)
    if cluster_name not in systems():
        close = nearest(cluster_name, systems())
        raise ConfigError(f"{cluster_name} is not a published system.{close} Published: {', '.join(systems())}")
    return str(REGRESSORS_FOLDER / cluster_name)
