"""Parts that all pages are made of: sections and tables; words are escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in a box of its own, which scrolls sideways on a narrow screen; cells are text."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def section(title: str, *content: str) -> str:
    """Return a section with a heading; its content is HTML."""
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"
