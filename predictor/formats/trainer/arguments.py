"""Arguments of a Trainer, under the names that a tool on top of it gives them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.fields import Fields
from predictor.formats.shell.words import as_written, is_unknown

OWN_KEYS = "trainer"  # the keys of a dialect whose names are the Trainer's own, with others that scripts have
WORDS = {"true": True, "false": False, "yes": True, "no": False, "none": None, "null": None}


def sectioned(content: Mapping[str, Any], sections: Collection[str]) -> dict[str, Any]:
    """Return the keys of sections by their dotted names, those that are null left out."""
    held = {name: content.get(name) for name in sections}
    return {
        f"{name}.{key}": value
        for name, keys in held.items()
        if isinstance(keys, Mapping)
        for key, value in keys.items()
        if value is not None
    }


@dataclass(frozen=True, slots=True)
class Dialect:
    """One tool's arguments.

    Attributes:
        tool: as messages call it.
        keys: of ``known_keys``.
        names: the tool's names of arguments that the Trainer calls otherwise, each with the Trainer's.
        defaults: where they are not the Trainer's, by its names.
        read: keys that a tool's own function reads.
    """

    tool: str
    keys: str
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: Collection[str] = ()


@dataclass(slots=True)
class Arguments:
    """The arguments of one run, by the Trainer's names.

    Attributes:
        fields: as the file has them.
        dialect: the tool's.
        notes: what is said of them so far.
        unsaid: keys of a configuration that they leave open, each with the reason.
        taken: defaults that were taken, by the names of the tool.
    """

    fields: Fields
    dialect: Dialect
    notes: list[str] = field(default_factory=list)
    unsaid: dict[str, str] = field(default_factory=dict)
    taken: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Return the file, for messages."""
        return self.fields.where

    def own(self, key: str) -> str:
        """Return the tool's name of an argument; of several the one that has a value."""
        names = [name for name, usual in self.dialect.names.items() if usual == key]
        given = [name for name in (key, *names) if self.fields.has(name)]
        if given or not names or self.dialect.keys == OWN_KEYS:
            return given[0] if given else key
        return names[0]

    def has(self, key: str) -> bool:
        """Return whether an argument is given; it does not count as read."""
        return self.fields.has(self.own(key))

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value as it is written, else the tool's default, else the one given here."""
        found = self.fields.get(self.own(key))
        return self.dialect.defaults.get(key, default) if found is None else found

    def is_open(self, key: str) -> bool:
        """Return whether a value comes from outside of the file: a variable that its script does not set."""
        value = self.fields.values.get(self.own(key))
        return isinstance(value, str) and is_unknown(value)

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that an argument breaks a rule."""
        return self.fields.error(self.own(key), rule)

    def broken(self, key: str, rule: str) -> None:
        """Record that an argument breaks a rule."""
        self.fields.broken(self.error(key, rule))

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number; a default that stands in is recorded."""
        own = self.own(key)
        if self.is_open(key):
            self.broken(key, "it comes from outside; write its value")
            return default
        if not self.fields.has(own):
            default = int(self.dialect.defaults.get(key, default))
            self.taken[own] = default
        return self.fields.whole(own, default, least)

    def size(self, key: str, target: str, default: int | None) -> int | None:
        """Return a size that a run needs; None, after recording why, where it comes from outside or has no default.

        Args:
            key: of the argument.
            target: key of a configuration that it becomes.
            default: of the Trainer.
        """
        own = self.own(key)
        if self.is_open(key):
            self.fields.used.add(own)
            written = as_written(self.fields.values[own])
            self.unsaid[target] = f"{self.where}: {self.fields.prefix}{own} is {written}, which comes from outside"
            return None
        if default is None and key not in self.dialect.defaults and not self.fields.has(own):
            self.unsaid[target] = f"{self.where}: it says no {own}"
            return None
        return self.whole(key, default or 1)

    def switch(self, key: str, default: bool = False) -> bool:
        """Return whether an argument is on; « auto » counts as on, a number as true where it is not 0."""
        value = self.value(key, default)
        if isinstance(value, str):
            value = WORDS.get(value.strip().lower(), value)
        if value == "auto":
            return True
        if isinstance(value, str | list | dict):
            shown = as_written(str(value))
            self.fields.broken(
                ConfigError(f"{self.where}: {self.fields.prefix}{self.own(key)} is {shown}; expected true or false")
            )
            return default
        return bool(value)

    def listed(self, key: str) -> list[str]:
        """Return words: of a list, or of a text that spaces or commas divide."""
        value = self.value(key)
        if value is None:
            return []
        if isinstance(value, str):
            return value.strip("[]").replace(",", " ").replace("'", "").replace('"', "").split()
        return [str(word) for word in value] if isinstance(value, list | tuple) else [str(value)]

    def section(self, key: str) -> dict[str, Any]:
        """Return keys and values, none where it is no mapping."""
        value = self.value(key)
        return dict(value) if isinstance(value, Mapping) else {}

    def pass_over(self, keys: Collection[str]) -> None:
        """Count arguments as read that matter beside others only, and all other names of those that were read."""
        self.fields.used |= {*keys, *self.dialect.names}

    def note(self, text: str) -> None:
        """Note what a prediction leaves out, with the file in front."""
        self.notes.append(f"{self.where}: {text}")
