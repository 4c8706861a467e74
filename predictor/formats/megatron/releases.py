"""Releases of Megatron-LM: which arguments each has, and which it refuses together.

The table is releases.yaml beside this file, with its sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.base.read_yaml import read_mapping

NUMBERS = {"whole": int, "real": float}
Arguments = dict[str, list[str]]


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A series of releases, ordered by age.

    Attributes:
        numbers: major and minor number.
        newest: its newest release, whose arguments are known.
    """

    numbers: tuple[int, int]
    newest: str

    def __str__(self) -> str:
        """Return the series, such as 0.19."""
        return ".".join(map(str, self.numbers))

    def has(self, since: str | None, until: str | None = None) -> bool:
        """Return whether this series lies between two, both included."""
        return (since is None or _numbers(since) <= self.numbers) and (until is None or self.numbers <= _numbers(until))


def _numbers(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@cache
def _table() -> dict[str, Any]:
    return read_mapping(Path(__file__).with_name("releases.yaml"))


def releases() -> tuple[Release, ...]:
    """Return the series whose arguments are known, the oldest first."""
    return tuple(Release(_numbers(name), str(newest)) for name, newest in _table()["releases"].items())


def release(name: str) -> Release:
    """Return a series by its name, such as 0.18."""
    return next(series for series in releases() if str(series) == name)


def arguments(words: list[str]) -> Arguments:
    """Return arguments with their values.

    >>> arguments(["--bf16", "--window-size 7,0"])
    {'--bf16': [], '--window-size': ['7,0']}
    """
    found: Arguments = {}
    for word in " ".join(words).split():
        if word.startswith("--"):
            values = found.setdefault(word, [])
        else:
            values.append(word.strip("'"))
    return found


def refusals(given: Arguments, series: Release) -> list[str]:
    """Return what a release refuses of arguments, a sentence each."""
    known = _table()["arguments"]
    wrong = []
    for name, values in given.items():
        entry = known.get(name)
        since = entry.get("since") if isinstance(entry, dict) else None
        if entry is None or not series.has(since):
            wrong.append(f"{name} is no argument" + (f" before core {since}" if since else ""))
            continue
        kind = entry["takes"] if isinstance(entry, dict) else entry
        wrong += [f"{name} does not take {' '.join(values) or 'no value'}"] * (not _takes(kind, values, series))
    for rule in _table()["rules"]:
        if series.has(rule.get("since"), rule.get("until")) and _holds(rule["given"], given):
            needs, refused = rule.get("needs"), rule.get("refuses")
            if needs is not None and not any(_holds(condition, given) for condition in needs):
                wrong.append(f"{rule['given']} needs {' or '.join(needs)}")
            if refused is not None and _holds(refused, given):
                wrong.append(f"{rule['given']} refuses {refused}")
    return wrong


def check(words: list[str], series: Release) -> None:
    """Check that a release takes arguments.

    Raises:
        ConfigError: it does not; the message says which, and why.
    """
    wrong = refusals(arguments(words), series)
    if wrong:
        raise ConfigError(f"Megatron-LM's core {series.newest} does not start so: {'; '.join(wrong)}")


def _takes(kind: str | list[Any], values: list[str], series: Release) -> bool:
    """Return whether an argument of a kind takes values; what a variable holds is the user's."""
    if kind == "switch":
        return not values
    if kind == "words":
        return bool(values)
    if len(values) != 1:
        return False
    if isinstance(kind, list):
        choices = [choice if isinstance(choice, dict) else {choice: None} for choice in kind]
        return any(values[0] in choice and series.has(choice[values[0]]) for choice in choices)
    if kind not in NUMBERS or "$" in values[0]:
        return True
    try:
        NUMBERS[kind](values[0])
    except ValueError:
        return False
    return True


def _holds(condition: str, given: Arguments) -> bool:
    """Return whether arguments meet a condition: one is given, has a value among its own, or exceeds a bound."""
    if " and " in condition:
        return all(_holds(part, given) for part in condition.split(" and "))
    name, *rest = condition.split()
    values = given.get(name)
    if values is None:
        return False
    if rest[:1] == [">"]:
        return bool(values) and int(values[0]) > int(rest[1])
    return not rest or rest[0] in values
