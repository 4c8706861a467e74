"""Parts that all pages are made of: sections and tables; words are escaped here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

# A number with its sign and its unit, or none.
NUMBER = re.compile(r"(± ?|[+−-])?[\d.,]+( ?(%|×|s|ms|µs|GiB))?|[–-]?")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], wraps: str | None = None) -> str:
    """Return a table in a box of its own, which scrolls sideways on a narrow screen; cells are text.

    Args:
        head: names of the columns; those that hold nothing but numbers are set flush right.
        rows: of cells.
        wraps: name of a column of sentences, which are broken into lines.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(head)
    numbers = [any(cells) and all(NUMBER.fullmatch(cell) for cell in cells) for cells in columns]
    kinds = [
        ' class="wraps"' if name == wraps else ' class="number"' if number else ""
        for name, number in zip(head, numbers, strict=True)
    ]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *content: str) -> str:
    """Return a section with a heading; its content is HTML."""
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"
