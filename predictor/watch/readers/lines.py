"""Lines of a file that have certain words, from blocks of bytes cut anywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from predictor.watch.events import Event

LONGEST_LINE = 1 << 13  # bytes of a line that are looked at


class LineFinder:
    r"""Finds the lines that hold one of some words; what is found does not depend on where blocks are cut.

    Lines end with ``\n`` or ``\r`` (progress bars). NUL bytes are left out, so that ASCII in UTF-16 is read too.
    """

    def __init__(
        self, words: Sequence[bytes], longest: int = LONGEST_LINE, guarded: Sequence[bytes] = (), guard: bytes = b""
    ) -> None:
        """Take the words, each with its index as its name; an empty one is in every line.

        Args:
            words: looked for in every block.
            longest: bytes of a line that are looked at.
            guarded: further words, which are in no line without ``guard``.
            guard: looked for before them.
        """
        self._words = tuple(enumerate(words))
        self._all_words = tuple(enumerate((*words, *guarded)))
        self._guard = guard
        self._longest = longest
        self._carry = b""

    def feed(self, block: bytes) -> list[tuple[bytes, int]]:
        """Return lines that ended in a block, in their order, each once for every word that it holds."""
        if b"\0" in block:
            block = block.replace(b"\0", b"")
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")
        end = block.rfind(b"\n") + 1
        if not end:
            self._carry = (self._carry + block[: self._longest])[: self._longest]
            return []
        first = block.find(b"\n") + 1
        found = self._found((self._carry + block[: first - 1])[: self._longest] + b"\n", 0)
        self._carry = block[end : end + self._longest]
        return found + self._found(block[:end], first)

    def finish(self) -> list[tuple[bytes, int]]:
        """Return a last line without an end."""
        carry, self._carry = self._carry, b""
        return self._found(carry + b"\n", 0)

    def _found(self, block: bytes, begin: int) -> list[tuple[bytes, int]]:
        """Return lines of a block of whole lines."""
        hits: list[tuple[int, int, int]] = []
        find, rfind, longest = block.find, block.rfind, self._longest
        for index, word in self._all_words if self._guard in block else self._words:
            if not word:
                hits += self._all(block, begin, index)
                continue
            at, size = find(word, begin), len(word)
            while at >= 0:
                start = rfind(b"\n", 0, at) + 1
                end = find(b"\n", at)
                if at + size - start <= longest:
                    hits.append((start, index, end))
                at = find(word, end)
        hits.sort()
        return [(block[start : end if end - start < longest else start + longest], index) for start, index, end in hits]

    def _all(self, block: bytes, begin: int, index: int) -> Iterator[tuple[int, int, int]]:
        start = begin
        while (end := block.find(b"\n", start)) >= 0:
            if end > start:
                yield start, index, end
            start = end + 1


class LineRecords(ABC):
    """A reader of files whose lines are each a whole record."""

    def __init__(self, words: Sequence[bytes], longest: int = LONGEST_LINE) -> None:
        """Take the words of which a record has one."""
        self._lines = LineFinder(words, longest)

    def feed(self, block: bytes) -> Iterator[Event]:
        """Return the events of a block."""
        yield from self._events(self._lines.feed(block))

    def settle(self) -> Iterator[Event]:
        """Return nothing: a line that is not ended may go on."""
        yield from ()

    def finish(self) -> Iterator[Event]:
        """Return the events of a last line without an end."""
        yield from self._events(self._lines.finish())

    @abstractmethod
    def _events(self, lines: Iterable[tuple[bytes, int]]) -> Iterable[Event]:
        """Return the events of lines."""
