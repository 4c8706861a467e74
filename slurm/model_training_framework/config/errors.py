"""Errors of a configuration. Each message is one line: the dotted key, its value, the rule and the remedy."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """A configuration, a grid or a file of one that cannot be used."""


class ValidationError(ConfigurationError):
    """A configuration whose keys or values are not allowed.

    Attributes:
        problems: everything that is wrong, a line each; the message is the first.
    """

    def __init__(self, *problems: str) -> None:
        """Keep every problem; the message is the first and how many more there are."""
        more = len(problems) - 1
        rest = "" if more < 1 else f" (and {more} more problem{'s' if more > 1 else ''})"
        super().__init__(f"{problems[0]}{rest}" if problems else "")
        self.problems = problems

    def __reduce__(self) -> tuple[type[ValidationError], tuple[str, ...]]:
        """Return how another process rebuilds it: from its problems, not from its message."""
        return type(self), self.problems
