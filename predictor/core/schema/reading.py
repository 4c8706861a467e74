"""Strictness of reading other tools' files, set once per command."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Reading(NamedTuple):
    """How files are read.

    Attributes:
        strict: a key that is not known is refused, whatever it says.
        verbose: keys that were passed over, as they cost nothing, are listed.
    """

    strict: bool = False
    verbose: bool = False


READING: ContextVar[Reading] = ContextVar("reading", default=Reading())  # noqa: B039 (it cannot be changed)
