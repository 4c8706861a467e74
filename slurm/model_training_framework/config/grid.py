"""A grid of parameters: dotted keys and the values that each takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from model_training_framework.config.errors import ConfigurationError
from model_training_framework.config.explain import shown
from model_training_framework.config.fields import file_values
from model_training_framework.config.nested import check_key

NAMED_BY_THE_SEARCH = "experiment_name"


class ParameterGrid:
    """All combinations of the values of some parameters.

    Attributes:
        name: of the grid; for messages, and for experiments whose base configuration has none.
        description: a sentence for people.
    """

    def __init__(self, name: str, description: str = "") -> None:
        """Start without parameters: one combination, which is the base configuration itself."""
        if not str(name).strip():
            raise ConfigurationError(f"the name of a grid is {shown(name)}; expected text that is not empty")
        self.name = str(name)
        self.description = description
        self._values: dict[str, tuple[Any, ...]] = {}

    def add_parameter(self, key: str, values: Iterable[Any]) -> None:
        """Let a key take values.

        Args:
            key: dotted, such as ``model.hidden_size``; a whole section such as ``scheduler`` takes mappings and None.
            values: a list that is not empty. They are copied.

        Raises:
            ConfigurationError: there is no such key (the message names the nearest), it has values already or lies
                within one that has, or the list is empty or none.
        """
        key = check_key(key)
        if key == NAMED_BY_THE_SEARCH:
            raise ConfigurationError(f"{key} cannot be a parameter of grid {self.name}: a naming strategy makes it")
        for other in self._values:
            if key == other:
                raise ConfigurationError(f"{key} is given twice in grid {self.name}; give all its values at once")
            if f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}."):
                raise ConfigurationError(f"{key} and {other} of grid {self.name} overlap; vary one of them")
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise ConfigurationError(f"{key} has {shown(values)} in grid {self.name}; expected a list of values")
        try:
            copied = tuple(file_values(value) for value in values)
        except ConfigurationError as error:
            raise ConfigurationError(f"{key} of grid {self.name}: {error}") from None
        if not copied:
            raise ConfigurationError(f"{key} has no values in grid {self.name}; expected one at least")
        self._values[key] = copied

    def add_nested_parameter(self, key_path: str, values: Iterable[Any]) -> None:
        """Let a nested key take values; ``add_parameter`` takes dotted keys too."""
        self.add_parameter(key_path, values)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Return every key with its values, in the order in which they were added; a copy."""
        return {key: file_values(values) for key, values in self._values.items()}

    def get_parameter_count(self) -> int:
        """Return the number of combinations: the product of the numbers of values; 1 without parameters."""
        return prod(len(values) for values in self._values.values())

    def generate_permutations(self) -> Iterator[dict[str, Any]]:
        """Give all combinations as dotted keys and values, in a stable order: the last key varies fastest.

        Values are copies: changing them changes neither the grid nor another combination.
        """
        for values in product(*self._values.values()):
            yield {key: file_values(value) for key, value in zip(self._values, values, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        """Return the grid as YAML and JSON hold it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ParameterGrid:
        """Return the grid that keys and values make: ``name``, ``description`` and ``parameters``.

        Raises:
            ConfigurationError: a key is unknown or missing, or a parameter is not allowed.
        """
        known = ("name", "description", "parameters")
        if not isinstance(content, Mapping):
            raise ConfigurationError(f"a grid is {shown(content)}; it needs keys: {', '.join(known)}")
        for key in content:
            if key not in known:
                raise ConfigurationError(f"{key} is not a known key of a grid. Known: {', '.join(known)}")
        parameters = content.get("parameters")
        if "name" not in content or not isinstance(parameters, Mapping):
            raise ConfigurationError("a grid needs a name, and parameters: dotted keys with lists of values")
        if not isinstance(content["name"], str | int | float):
            raise ConfigurationError(f"the name of a grid is {shown(content['name'])}; expected text")
        grid = cls(str(content["name"]), content.get("description") or "")
        for key, values in parameters.items():
            grid.add_parameter(key, values)
        return grid

    def __repr__(self) -> str:
        """Return name and number of combinations."""
        return f"<ParameterGrid {self.name}: {self.get_parameter_count()} combinations of {', '.join(self._values)}>"
