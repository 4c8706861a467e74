"""Read and write configuration files: YAML and JSON, strictly and atomically."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from model_training_framework.config.errors import ConfigurationError
from model_training_framework.config.explain import shown
from model_training_framework.config.fields import file_values
from predictor.core.base.errors import nearest
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import read_keys

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


class ConfigFileNotFoundError(ConfigurationError, FileNotFoundError):
    """A configuration file that is not there."""


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that the reader would take for a number: it reads 1e-8 as one, unlike PyYAML."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; a key that is given twice is an error."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigurationError(f"{key} is given twice")
        found[key] = value
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no text; expected UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} holds {shown(content)}; expected keys and values")
    return content


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML or, where its name ends in .json, a JSON file that holds one mapping.

    Raises:
        ConfigFileNotFoundError: there is no such file; the message names the nearest beside it.
        ConfigurationError: it cannot be read, does not parse, gives a key twice, or holds something else.
    """
    if not path.exists():
        beside = sorted(file.name for file in path.parent.glob("*") if file.suffix in FORMATS)
        raise ConfigFileNotFoundError(f"{path} does not exist.{nearest(path.name, beside)}")
    content = _read_json(path) if path.suffix == ".json" else read_keys(path, ConfigurationError)
    try:
        copied: dict[str, Any] = file_values(content)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply; does an anchor contain itself?") from None
    return copied


def dumped(content: Mapping[str, Any], format: str) -> str:  # noqa: A002 — the name of the documented argument
    """Return keys and values as the text of a file.

    Raises:
        ConfigurationError: there is no such format, or a value is nothing that YAML and JSON hold.
    """
    if format not in FORMATS.values():
        raise ConfigurationError(f"format is {shown(format)}; expected yaml or json")
    copied = file_values(content)
    if format == "json":
        return json.dumps(copied, indent=2, ensure_ascii=False) + "\n"
    return "".join(_yaml(json.dumps({key: value})) for key, value in copied.items()) or "{}\n"


@lru_cache(maxsize=1024)
def _yaml(content: str) -> str:
    """Return JSON as YAML; the experiments of a grid have most sections in common."""
    text: str = yaml.dump(json.loads(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def write_file(content: Mapping[str, Any], path: Path, format: str = "yaml") -> None:  # noqa: A002
    """Write keys and values atomically; folders are made where they are missing.

    Raises:
        ConfigurationError: the format is unknown or not that of the path's ending, or a value cannot be written.
        OSError: the file cannot be written; what was there before is there still.
    """
    text = dumped(content, format)
    expected = FORMATS.get(path.suffix)
    if expected is not None and expected != format:
        raise ConfigurationError(f'{path} ends in {path.suffix}, format is {format}; write format="{expected}"')
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
