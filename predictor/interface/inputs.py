"""Inputs of the public interface: a configuration (path or mapping) and hardware changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from predictor.base.errors import ConfigError
from predictor.configuration.loading import Loaded, on_nodes_of, prepare, read_config

Config = str | PathLike[str] | Mapping[str, Any]
Hardware = Mapping[str, float | str] | Sequence[str]


class Configuration(NamedTuple):
    """An unchecked configuration.

    Attributes:
        name: the path as it was given; "configuration" for a mapping.
        content: in either form.
        base: folder that paths in it are relative to.
    """

    name: str
    content: dict[str, Any]
    base: Path


def plain(value: Any) -> Any:
    """Return nested mappings, sequences and paths as the dictionaries, lists and strings of a file."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return fspath(value) if isinstance(value, PathLike) else value


def read(config: Config) -> Configuration:
    """Return the content of a configuration file, or of a mapping with the same keys.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ConfigError: neither a path nor a mapping, or the file holds something else.
    """
    if isinstance(config, Mapping):
        return Configuration("configuration", plain(config), Path.cwd())
    if not isinstance(config, str | PathLike):
        raise ConfigError(f"config is {config!r}; expected the path of a configuration file, or a mapping of its keys")
    content, base = read_config(fspath(config))
    return Configuration(fspath(config), content, base)


def change_texts(hardware: Hardware | None) -> list[str]:
    """Return changes to the hardware as ``whatif --set`` takes them, KEY=VALUE."""
    if hardware is None:
        return []
    if isinstance(hardware, Mapping):
        return [f"{key}={value}" for key, value in hardware.items()]
    return [hardware] if isinstance(hardware, str) else list(hardware)


def prepare_on(configuration: Configuration, system: str | None, changes: Sequence[str]) -> Loaded:
    """Return a run on its own or another system, with changed hardware.

    Args:
        configuration: of the run.
        system: name or folder of another published system.
        changes: KEY=VALUE or KEY=x2, a factor on the system's number; all apply together.

    Raises:
        MissingKeyError: a required key is absent; a KeyError.
        ConfigError: a key is unknown, or a value is not allowed or not published; a ValueError.
        PublishedError: the published system is damaged or lacks an operator; a ValueError.
    """
    content, base = configuration.content, configuration.base
    if system is not None:
        content = on_nodes_of(content, system, base)
    loaded = prepare(content, base)
    if not changes:
        return loaded
    from predictor.costs.hardware_change import changed, parse_change  # only when needed, for a fast start

    parsed = [parse_change(text, loaded.system.hardware) for text in changes]
    numbers = dict(parsed)
    if len(numbers) < len(parsed):
        raise ConfigError("--set names one key twice; give each once")
    if "gpus_per_node" in numbers:
        content = on_nodes_of(content)
    return prepare(content, base, lambda published: changed(published, numbers))
