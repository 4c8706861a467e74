"""All problems of a file, found part by part and raised together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from predictor.core.base.errors import ConfigError, ManyProblemsError, raise_together

T = TypeVar("T")


def lines_of(error: ConfigError) -> list[str]:
    """Return the problems that an error names, one a line."""
    return list(error.lines) if isinstance(error, ManyProblemsError) else [str(error)]


@dataclass(slots=True)
class Problems:
    """Problems found so far.

    Attributes:
        lines: one a problem. ``Fields`` that share the list record broken rules there instead of raising.
    """

    lines: list[str] = field(default_factory=list)

    def part(self, stand_in: T, read: Callable[..., T], *arguments: Any) -> T:
        """Return what a part of a file says, or a stand-in after recording why it cannot be read.

        What a part raises after it recorded a broken rule is left out: it may follow from the stand-in of that rule.
        """
        before = len(self.lines)
        try:
            return read(*arguments)
        except ConfigError as error:
            if len(self.lines) == before:
                self.lines += lines_of(error)
            return stand_in

    def check(self) -> None:
        """Raise what was found.

        Raises:
            ConfigError: there is a problem; with several, each has its line.
        """
        raise_together(list(dict.fromkeys(self.lines)))
