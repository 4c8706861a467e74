"""Signatures of file formats: syntax, keys and text that no other format has together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from predictor.formats.source import DATA, PYTHON, TEXT, Source


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature of a format; a file is of the format where every condition holds.

    Attributes:
        syntaxes: that the file may have.
        all_of: dotted keys that it has; of several spellings, with bars between them, one.
        one_of: dotted keys of which it has at least ``at_least``.
        none_of: dotted keys that it does not have.
        pattern: that its text has.
        test: a further condition.
    """

    syntaxes: tuple[str, ...] = DATA
    all_of: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    at_least: int = 1
    none_of: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    test: Callable[[Source], bool] | None = None

    def matches(self, source: Source) -> bool:
        """Return whether a file is of the format."""
        return (
            source.syntax in self.syntaxes
            and all(any(map(source.has, key.split("|"))) for key in self.all_of)
            and (not self.one_of or sum(map(source.has, self.one_of)) >= self.at_least)
            and not any(map(source.has, self.none_of))
            and (self.pattern is None or self.pattern.search(source.text) is not None)
            and (self.test is None or self.test(source))
        )

    def names(self) -> set[str]:
        """Return the keys that it names."""
        return {*(name for key in self.all_of for name in key.split("|")), *self.one_of}


def text_signature(pattern: str, *syntaxes: str) -> Signature:
    """Return a signature by a file's text, in any syntax unless some are named."""
    return Signature(syntaxes or (*DATA, PYTHON, TEXT), pattern=re.compile(pattern, re.MULTILINE))
