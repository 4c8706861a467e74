"""Access to a config.json by the usual names of its keys, with the defaults of its family's class."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.hugging_face.families import Family

# Names of keys that say sizes or parts of a layer: one that the family does not have may be another architecture.
SIZE = re.compile(
    r"(hidden_size|intermediate_size|ffn_size|_dim|_rank|_heads|_groups|_experts|_layers|_kernel\w*|_width|_types"
    r"|_lora\w*|use_\w*(gate|norm|conv|bias)\w*|\w*_bias|ssm_\w*|mamba_\w*|conv_\w*|linear_\w*|res_block_size)$"
)


def may_be_a_size(key: str, value: object) -> bool:
    """Return whether a key that nothing reads may say a size or a part of a layer."""
    return bool(SIZE.search(key)) and value not in ("", "auto", None, False, 0)


@dataclass(slots=True)
class Config:
    """One file being read, by the usual names of keys.

    Attributes:
        fields: the keys under the names of the family's class.
        notes: what the reader says about the file so far.
    """

    fields: Fields
    model_type: str
    family: Family
    notes: list[str] = field(default_factory=list)

    def name(self, key: str) -> str:
        """Return the family's own name of a key."""
        return self.family.names.get(key, key)

    def value(self, key: str) -> Any:
        """Return a value as the file has it, null included, else the default of the class.

        A key that only other families have is None, and stays unused.
        """
        name = self.name(key)
        if not self.family.knows(name):
            return None
        self.fields.used.add(name)
        return self.fields.values[name] if name in self.fields.values else self.family.defaults.get(name)

    def is_given(self, key: str) -> bool:
        """Return whether the file has a value for a key of the family."""
        return self.family.knows(self.name(key)) and self.fields.has(self.name(key))

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that a value breaks a rule."""
        name = self.name(key)
        if name not in self.fields.values and name in self.family.defaults:
            return ConfigError(f"{self.fields.where}: {name} is {self.family.defaults[name]!r}, its default; {rule}")
        return self.fields.error(name, rule)

    def whole(self, key: str, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            ConfigError: it is something else, or null without a default.
        """
        value = self.optional(key, least)
        if value is None:
            raise ConfigError(f"{self.fields.where}: {self.name(key)} is missing; it is required")
        return value

    def optional(self, key: str, least: int = 1) -> int | None:
        """Return a whole number, or None where it is null in the file, or in the class where the file has no such key.

        Raises:
            ConfigError: it is something else.
        """
        if self.value(key) is None:
            return None
        name = self.name(key)
        default = self.family.defaults.get(name)
        return self.fields.whole(name, int(default) if isinstance(default, int | float) else None, least)

    def switch(self, key: str) -> bool:
        """Return true or false; null counts as false.

        Raises:
            ConfigError: it is something else.
        """
        value = self.value(key)
        return False if value is None else self.fields.switch(self.name(key), bool(value))

    def real(self, key: str) -> float:
        """Return a number; null counts as 0.

        Raises:
            ConfigError: it is something else.
        """
        value = self.value(key)
        if value is None:
            return 0.0
        return self.fields.real(self.name(key), float(self.family.defaults.get(self.name(key)) or 0.0))

    def listed(self, key: str) -> list[Any] | None:
        """Return a list, None where it is absent.

        Raises:
            ConfigError: it is something else.
        """
        value = self.value(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, "expected a list of layers")
        return value
