"""A file of another tool before its format is known: its text, its syntax and, of data, its content."""

from __future__ import annotations

import json
import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.base.lazy import lazy
from predictor.core.base.read_yaml import load_foreign

LARGEST_BYTES = 10_000_000  # more is no hand-written configuration, perhaps a checkpoint's index
JSON, YAML, TOML, PYTHON, TEXT = "JSON", "YAML", "TOML", "Python", "text"
FUNCTION = re.compile(r"^(.+\.py)::?([A-Za-z_]\w*)$")  # of a Python file
DATA = (JSON, YAML, TOML)  # syntaxes whose content is keys and values


@dataclass(frozen=True)  # no slots: its content is parsed once
class Source:
    """A file, and what is known of the run beside it.

    Attributes:
        path: the file.
        function: the configuration that is meant, where a Python file may have several.
        num_gpus: GPUs of the run, where the file does not decide them.
        data_parallel_size: replicas, where the file does not decide them.
    """

    path: Path
    function: str | None = None
    num_gpus: int | None = None
    data_parallel_size: int | None = None

    @lazy
    def text(self) -> str:
        """The file's text.

        Raises:
            FileNotFoundError: there is no file.
            ConfigError: it is a folder, too large or no text.
        """
        path = self.path
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; expected a file such as its config.json")
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes; expected a configuration, of at most {LARGEST_BYTES:,}")
        if not path.is_file():
            raise ConfigError(f"{path} is a pipe, which can be read once only; save it as a file and read that")
        written = path.read_bytes()
        if written.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise ConfigError(f"{path} is text in UTF-16; write it in UTF-8: iconv -f UTF-16 -t UTF-8 {path.name}")
        try:
            return written.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is no text; expected a configuration or a script") from None

    @lazy
    def _parsed(self) -> tuple[str, dict[str, Any]]:
        """The syntax, and the keys and values of data."""
        text = self.text  # whose own errors are no parser's
        if self.path.suffix == ".py":
            return PYTHON, {}
        for syntax, parse in ((JSON, json.loads), (YAML, load_foreign), (TOML, tomllib.loads)):
            try:
                content = parse(text)
            except (yaml.YAMLError, ValueError, RecursionError):
                continue
            if isinstance(content, dict):
                return syntax, {str(key): value for key, value in content.items()}
        return TEXT, {}

    @property
    def syntax(self) -> str:
        """Return JSON, YAML or TOML of a mapping, Python, or text: a script, a list of arguments, prose."""
        return self._parsed[0]

    @property
    def content(self) -> dict[str, Any]:
        """Return the keys and values of data; none of any other syntax."""
        return self._parsed[1]

    def at(self, key: str) -> Any:
        """Return the value under a dotted key, None where there is none."""
        value: Any = self.content
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def has(self, key: str) -> bool:
        """Return whether there is a dotted key, its value null or not."""
        section, _, name = key.rpartition(".")
        holder = self.at(section) if section else self.content
        return isinstance(holder, dict) and name in holder


def with_function(path: Path) -> tuple[Path, str | None]:
    """Return the file and the function of a path such as recipe.py:llama3_8b; None where it names no function."""
    named = FUNCTION.match(str(path))
    return (Path(named[1]), named[2]) if named and not path.exists() else (path, None)


def load_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        ConfigError: it does not parse, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no keys and values; expected a JSON object")
    return content
