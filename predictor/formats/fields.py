"""Typed access to the keys of a foreign configuration file; records which keys were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.formats.shell.words import as_written


def settled_gpus(asked: int | None, said: int | None, where: str, notes: list[str]) -> int | None:
    """Return the GPUs of a run: those that the caller asks for, noted where the file says others, else the file's."""
    if asked is None:
        return said
    if said is not None and said != asked:
        notes.append(f"{where}: it says {said} GPUs; {asked} are asked for, which count")
    return asked


@dataclass(slots=True)
class Fields:
    """The keys of one section.

    Attributes:
        values: keys as the file has them; null counts as absent.
        where: the file, for messages.
        prefix: the section with its separator, for messages.
        used: keys that were read.
        problems: broken rules so far, where reading goes on with a stand-in; None: the first one is raised.
    """

    values: Mapping[str, Any]
    where: str
    prefix: str = ""
    used: set[str] = field(default_factory=set)
    problems: list[str] | None = None

    def broken(self, problem: ConfigError) -> None:
        """Record a problem, after which reading goes on with a stand-in.

        Raises:
            ConfigError: the problem, where none are recorded.
        """
        if self.problems is None:
            raise problem
        self.problems.append(str(problem))

    def written(self, key: str) -> str:
        """Return a key as the file has it."""
        return f"{self.prefix}{key}"

    def error(self, key: str, rule: str) -> ConfigError:
        """Return the error that a value breaks a rule; the rule carries the way out."""
        return ConfigError(f"{self.where}: {self.prefix}{key} is {self._shown(key)}; {rule}")

    def _shown(self, key: str) -> str:
        value = self.values.get(key)
        if isinstance(value, dict):
            return "a mapping"
        text = repr(as_written(value) if isinstance(value, str) else value)
        return text if len(text) <= 80 else f"{text[:77]}..."

    def get(self, key: str) -> Any:
        """Return a value as the file has it, None where it is absent."""
        self.used.add(key)
        return self.values.get(key)

    def has(self, key: str) -> bool:
        """Return whether a key has a value; it does not count as read."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of at least ``least``, such as 5e8.

        Raises:
            ConfigError: it is something else, or absent without a default.
        """
        value = self.get(key)
        if value is None:
            if default is None and not self.has(key):
                self.broken(ConfigError(f"{self.where}: {self.prefix}{key} is missing; it is required"))
            return least if default is None else default
        if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            self.broken(self.error(key, "expected a whole number"))
            return least
        if value < least:
            self.broken(self.error(key, f"expected at least {least}"))
        return max(least, int(value))

    def optional_whole(self, key: str, least: int = 1) -> int | None:
        """Return a whole number, or None where the key is absent."""
        self.used.add(key)
        return self.whole(key, least=least) if self.has(key) else None

    def real(self, key: str, default: float) -> float:
        """Return a number.

        Raises:
            ConfigError: it is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        try:
            return float("x" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            self.broken(self.error(key, "expected a number"))
            return default

    def switch(self, key: str, default: bool = False) -> bool:
        """Return true or false.

        Raises:
            ConfigError: it is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.broken(self.error(key, "expected true or false"))
        return bool(value)

    def text(self, key: str, default: str, known: Iterable[str] = ()) -> str:
        """Return a word, which must be in ``known`` if that has any.

        Raises:
            ConfigError: it is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        choices = list(known)
        if not isinstance(value, str) or (choices and value not in choices):
            self.broken(self.error(key, f"expected {', '.join(choices) or 'a word'}"))
            return default
        return value

    def section(self, key: str) -> Fields:
        """Return the section under a key, empty where it is absent.

        Raises:
            ConfigError: it holds no keys.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            self.broken(self.error(key, "expected keys and values"))
            value = {}
        return Fields(value or {}, self.where, f"{self.prefix}{key}.", problems=self.problems)

    def unused(self) -> list[str]:
        """Return the keys with a value that were not read."""
        return [key for key, value in self.values.items() if key not in self.used and value is not None]
