"""Base of the three configurations: dictionaries, files and the rules of their fields."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import yaml

from llm_trainer.exceptions import ModelConfigurationError
from predictor.core.base.errors import nearest
from predictor.core.base.files import write_whole
from predictor.core.base.read_yaml import read_keys

YAML_SUFFIXES = (".yaml", ".yml")


@dataclass
class Section:
    """A configuration that can be checked, converted to and from a dictionary, saved and loaded.

    Fields may be set after construction, as the documented examples do; whoever uses a configuration calls
    ``validate`` again.
    """

    def __post_init__(self) -> None:
        """Check every field."""
        self.validate()

    def validate(self) -> None:
        """Check every field.

        Raises:
            ModelConfigurationError: a value is not allowed.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return all fields; values are those of JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Return the configuration of a dictionary; absent fields keep their defaults.

        Raises:
            ModelConfigurationError: a key is unknown, or a value is not allowed.
        """
        if not isinstance(config_dict, Mapping):
            raise ModelConfigurationError(f"{cls.__name__} is {config_dict!r}; expected keys and values")
        known = [field.name for field in fields(cls)]
        for key in config_dict:
            if key not in known:
                raise ModelConfigurationError(
                    f"{key} is no field of {cls.__name__}.{nearest(str(key), known) or ' It has ' + ', '.join(known)}"
                )
        return cls(**config_dict)

    def save(self, path: str | Path) -> None:
        """Write the configuration to a file: YAML where it ends in .yaml or .yml, JSON otherwise.

        Raises:
            OSError: the file cannot be written.
        """
        path, content = Path(path), self.to_dict()
        if path.suffix in YAML_SUFFIXES:
            write_whole(path, yaml.safe_dump(content, sort_keys=False))
        else:
            write_whole(path, json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a configuration from a YAML or JSON file.

        Raises:
            ModelConfigurationError: the file cannot be read, a key is unknown, or a value is not allowed.
        """
        content = read_keys(Path(path), ModelConfigurationError)
        try:
            return cls.from_dict(content)
        except ModelConfigurationError as error:
            raise ModelConfigurationError(f"{path}: {error}") from None

    def _refuse(self, name: str, rule: str) -> ModelConfigurationError:
        return ModelConfigurationError(f"{name} is {getattr(self, name)!r}; {rule}")

    def _whole(self, *names: str, least: int = 1) -> None:
        """Check that fields are whole numbers of at least ``least``."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self._refuse(name, f"expected a whole number of at least {least}")

    def _real(self, *names: str, least: float = 0.0, below: float = math.inf, most: float = math.inf) -> None:
        """Check that fields are finite numbers from ``least`` to under ``below``, or to ``most``."""
        limits = f" to under {below:g}" if below < math.inf else f" to {most:g}" if most < math.inf else " on"
        for name in names:
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or not least <= value <= most or value >= below:
                raise self._refuse(name, f"expected a number from {least:g}{limits}")

    def _flag(self, *names: str) -> None:
        """Check that fields are true or false."""
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise self._refuse(name, "expected true or false")

    def _choice(self, name: str, allowed: Collection[str]) -> None:
        """Check that a field is an allowed word."""
        value = getattr(self, name)
        if not isinstance(value, str) or value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise self._refuse(name, f"expected {', '.join(allowed)}.{hint}")

    def _text(self, *names: str, optional: bool = False) -> None:
        """Check that fields are text; None where they are optional."""
        for name in names:
            value = getattr(self, name)
            if not (optional and value is None) and (not isinstance(value, str) or not value.strip()):
                raise self._refuse(name, "expected text" + (", or null" if optional else ""))
