"""A table of the report: as aligned text on a terminal, as Markdown in docs/accuracy.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text; the first column is left-aligned, the others right-aligned.

    Attributes:
        name: one word, by which a document marks its place.
        title: a line above it.
    """

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> Iterator[str]:
        """Yield the title and the aligned lines."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        yield self.title
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            yield f"{first:{widths[0]}}  {'  '.join(cells)}".rstrip()

    def markdown(self) -> Iterator[str]:
        """Yield the table between the marks of a document."""
        yield f"<!-- table: {self.name} -->"
        yield f"| {' | '.join(self.head)} |"
        yield "|---|" + "--:|" * (len(self.head) - 1)
        for cells in self.rows:
            yield f"| {' | '.join(cells)} |"
        yield f"<!-- end of table: {self.name} -->"

    def placed_in(self, text: str) -> str:
        """Return a document's text with the table between its marks; without marks the text as it is."""
        marks = re.compile(f"<!-- table: {self.name} -->.*?<!-- end of table: {self.name} -->", re.DOTALL)
        return marks.sub(lambda _: "\n".join(self.markdown()), text)


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share in percent; a dash where there is none.

    >>> percent(97.4), percent(3.25, 1), percent(None)
    ('97', '3.2', '–')
    """
    return ABSENT if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """Return an error in percent with its sign.

    >>> signed(-3.25), signed(0.04)
    ('−3.2', '+0.0')
    """
    return ABSENT if value is None else f"{value:+.1f}".replace("-", "−")
