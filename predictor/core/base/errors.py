"""Errors in user input. Each problem is one line: the field, its value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """A configuration that cannot be predicted."""


class ManyProblemsError(ConfigError):
    """Several problems, of which each is a line of its own."""

    def __init__(self, lines: list[str]) -> None:
        """Take the problems in the order in which they were found."""
        self.lines = tuple(lines)
        super().__init__("\n  ".join([f"{len(lines)} problems:", *lines]))


def raise_together(lines: list[str]) -> None:
    """Raise problems as one error, in which each has its line; nothing where there is none.

    Raises:
        ConfigError: there is a problem.
    """
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        raise ManyProblemsError(lines)


class NoLayoutError(ConfigError):
    """A search without an answer: no layout divides model and batch over the GPUs, or none fits into memory."""

    def __init__(self, message: str, *, divides: bool) -> None:
        """Take the message, and whether a layout divides them, so that memory is what is missing."""
        self.divides = divides
        super().__init__(message)


class MissingKeyError(KeyError):
    """A required configuration key that is not there."""

    def __str__(self) -> str:
        """Return the message itself; KeyError would print its repr."""
        return str(self.args[0])


class PublishedError(ValueError):
    """A published system that is incomplete, damaged or edited by hand."""


MOST_MEANT = 4  # names that a message proposes
A_SLIP = 0.85  # share of letters alike, from which on a name is taken for another that was mistyped


def nearest(name: str, known: Iterable[str]) -> str:
    """Return « Did you mean …? » for the closest known names, case aside, or an empty string.

    They are the one of the same letters and digits, else one that differs by a slip, else those that begin with them,
    else the most alike.
    """
    names = list(dict.fromkeys(known))
    same = same_name(name, names)
    if same is not None:
        return f" Did you mean {same}?"
    lowered = [other.lower() for other in names]
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=A_SLIP)
    wanted = _letters(name)
    longer = [other for other in names if wanted and _letters(other).startswith(wanted)]
    if not close and 0 < len(longer) <= MOST_MEANT:
        return f" Did you mean {' or '.join(longer)}?"
    close = close or get_close_matches(name.lower(), lowered, n=1)
    return f" Did you mean {next(other for other in names if other.lower() == close[0])}?" if close else ""


def shortened(line: str) -> str:
    """Return a message whose words nobody types, such as a value of 5,000 characters, are cut."""
    return " ".join(f"{word[:80]}… ({len(word):,} characters)" if len(word) > 300 else word for word in line.split())


def same_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the same letters and digits, whatever their case; None where there is not just one."""
    wanted = _letters(name)
    same = [other for other in known if _letters(other) == wanted]
    return same[0] if len(same) == 1 and wanted else None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
