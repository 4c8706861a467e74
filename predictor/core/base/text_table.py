"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Container, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    r"""Return the lines of a table: columns as wide as their widest cell, two spaces between them.

    Args:
        rows: cells, the head first where there is one; a row without all columns ends in a cell of any width.
        left: columns that are aligned to the left, counted from the end where negative; the others to the right.

    >>> print("\n".join(text_table([("run", "ms", "source"), ("a", "12.5", "measured")], left=(0, -1))))
    run    ms  source
    a    12.5  measured
    """
    count = max(map(len, rows), default=0)
    whole = [row for row in rows if len(row) == count]
    widths = [max(len(row[column]) for row in whole) for column in range(count)]
    is_left = [column in left or column - count in left for column in range(count)]
    return ["  ".join(map(_padded, row, widths, is_left)).rstrip() for row in rows]


def _padded(cell: str, width: int, is_left: bool) -> str:
    return cell.ljust(width) if is_left else cell.rjust(width)
