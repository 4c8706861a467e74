"""Inputs of the public interface: a configuration (path or mapping) and hardware changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from predictor.core.base.errors import ConfigError
from predictor.core.plan import short_config
from predictor.core.plan.loading import Loaded, of_trainer, on_nodes_of, prepare, read_config
from predictor.core.schema.finding import short_form_system
from predictor.core.schema.inherited_keys import OwnKeys, completed


class Configuration(NamedTuple):
    """An unchecked configuration.

    Attributes:
        name: the path as it was given; "configuration" for a mapping.
        content: in either form.
        base: folder that paths in it are relative to.
        notes: on where its keys come from.
    """

    name: str
    content: dict[str, Any]
    base: Path
    notes: tuple[str, ...] = ()


Config = str | PathLike[str] | Mapping[str, Any] | Configuration
Hardware = Mapping[str, float | str] | Sequence[str]


def file_values(value: Any) -> Any:
    """Return nested mappings, sequences and paths as the dictionaries, lists and strings of a file."""
    if isinstance(value, Mapping):
        return {key: file_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [file_values(inner) for inner in value]
    return fspath(value) if isinstance(value, PathLike) else value


def read(config: Config) -> Configuration:
    """Return the content of a configuration file, or of a mapping with the same keys.

    Raises:
        FileNotFoundError: there is no such file.
        yaml.YAMLError: it does not parse.
        ConfigError: neither a path nor a mapping, or the file holds something else.
    """
    if isinstance(config, Configuration):
        return config
    if isinstance(config, Mapping):
        return Configuration("configuration", file_values(config), Path.cwd())
    if not isinstance(config, str | PathLike):
        raise ConfigError(f"config is {config!r}; expected the path of a configuration file, or a mapping of its keys")
    content, base = read_config(fspath(config))
    return Configuration(fspath(config), content, base)


def change_texts(hardware: Hardware | None) -> list[str]:
    """Return changes to the hardware as ``whatif --set`` takes them, KEY=VALUE.

    Raises:
        ConfigError: one of them is no text.
    """
    if hardware is None:
        return []
    if isinstance(hardware, Mapping):
        return [f"{key}={value}" for key, value in hardware.items()]
    texts = [hardware] if isinstance(hardware, str) else list(hardware)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"changes have {text!r}; expected texts, each KEY=VALUE, or a mapping")
    return texts


def completed_form(configuration: Configuration, said: Collection[str] = ()) -> Configuration:
    """Return a configuration in its full form, with the keys of other tools' files and of its preset.

    Args:
        configuration: in either form.
        said: dotted keys that are set afterwards, so that its files may leave them open.
    """
    content, told = of_trainer(configuration.content, configuration.base)
    if short_config.is_short(content):
        expanded = short_config.expand(content)  # which checks its keys
        content = {**expanded, "system": str(short_form_system(content, configuration.base))}
    content, notes = completed(content, configuration.base, OwnKeys(said))
    return configuration._replace(content=content, notes=(*configuration.notes, *told, *notes))


def with_changes(configuration: Configuration, texts: Sequence[str]) -> Configuration:
    """Return a configuration with changed keys, each ``KEY=VALUE``.

    Raises:
        ConfigError: no such key, or a value that cannot be read; the configuration is checked when it is prepared.
    """
    if not texts:
        return configuration
    from predictor.core.costs.hardware_change import KEYS
    from predictor.core.schema.settings import (  # only when needed, for a fast start
        keys_of,
        parse_setting,
        with_settings,
    )

    settings = [parse_setting(text, KEYS) for text in texts]
    full = completed_form(configuration, keys_of(settings))
    return full._replace(content=with_settings(full.content, settings))


def prepare_on(configuration: Configuration, system: str | None, changes: Sequence[str]) -> Loaded:
    """Return a run on its own or another system, with changed keys and hardware.

    Args:
        configuration: of the run.
        system: name or folder of another published system.
        changes: KEY=VALUE: keys of the configuration, or numbers of the system, also KEY=x2, a factor on them; all
            apply together.

    Raises:
        MissingKeyError: a required key is absent; a KeyError.
        ConfigError: a key is unknown, or a value is not allowed or not published; a ValueError.
        PublishedError: the published system is damaged or lacks an operator; a ValueError.
    """
    hardware: list[str] = []
    if changes:
        from predictor.core.costs.hardware_change import is_of_hardware  # only when needed, for a fast start

        hardware = [text for text in changes if is_of_hardware(text)]
        configuration = with_changes(configuration, [text for text in changes if text not in hardware])

    base = configuration.base
    content = configuration.content if system is None else on_nodes_of(configuration.content, system, base)
    loaded = prepared(content, base, hardware)
    return loaded._replace(notes=(*configuration.notes, *loaded.notes))


def prepared(content: dict[str, Any], base: Path, hardware: Sequence[str]) -> Loaded:
    """Return a run on its system with changed numbers of the hardware, each KEY=VALUE.

    Raises:
        MissingKeyError, ConfigError, PublishedError: as ``prepare_on``.
    """
    loaded = prepare(content, base)
    if not hardware:
        return loaded
    from predictor.core.costs.hardware_change import changed, network_notes, parse_change  # only when needed

    parsed = [parse_change(text, loaded.system.hardware) for text in hardware]
    numbers = dict(parsed)
    if len(numbers) < len(parsed):
        keys = [key for key, _ in parsed]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"--set names {twice} twice; give each key once")
    if "gpus_per_node" in numbers:
        content = on_nodes_of(content)
    told = network_notes(hardware, loaded.system.hardware)
    loaded = prepare(content, base, lambda published: changed(published, numbers))
    return loaded._replace(notes=(*told, *loaded.notes))
