"""Errors of launching ranks and of the ranks themselves. Each message is one line with the way out."""

from __future__ import annotations

from collections.abc import Iterable

from microbench.errors import MeasureError


class CollectiveError(MeasureError):
    """A collective that cannot be measured: a missing program, ranks that disagree, a failed or hung run."""


class OutOfMemoryError(CollectiveError):
    """A run that said itself that the GPU has no room for its buffers.

    Attributes:
        most_bytes: S of nccl-tests that the run would go up to; None where it only said that an allocation failed.
    """

    def __init__(self, message: str, most_bytes: int | None = None) -> None:
        """Keep the message and the limit."""
        super().__init__(message)
        self.most_bytes = most_bytes


LAST_LINES = 3


def last_lines(lines: Iterable[str], count: int = LAST_LINES) -> str:
    """Return a program's last lines in one line.

    >>> last_lines(["a", "", "b ", "c", "d"])
    'b | c | d'
    >>> last_lines([])
    'it said nothing'
    """
    said = [line.strip() for line in lines if line.strip()]
    return " | ".join(said[-count:]) or "it said nothing"
