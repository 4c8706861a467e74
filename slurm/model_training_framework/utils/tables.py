"""Tables of text, and quantities as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNITS_S = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
FROM = {"days": 2.0}  # hours read better until then


def duration(seconds: float) -> str:
    """Return a duration to three digits in the unit that reads best.

    >>> [duration(seconds) for seconds in (0.00748, 0.15, 90.0, 86_400.0, 1_000_000.0)]
    ['7.48 ms', '150 ms', '1.5 min', '24 h', '11.6 days']
    """
    for unit, size in UNITS_S:
        # What would be rounded up to a whole unit is said in it.
        if seconds >= 0.9995 * size * FROM.get(unit, 1.0):
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def interval(value_s: float, low_s: float, high_s: float) -> str:
    """Return a duration and the interval that it lies in.

    >>> interval(0.00748, 0.00611, 0.0104)
    '7.48 ms (6.11 – 10.4)'
    >>> interval(59.0, 50.0, 70.0)
    '59 s (50 s – 1.17 min)'
    """
    (value, unit), (low, low_unit), (high, high_unit) = (duration(s).split() for s in (value_s, low_s, high_s))
    if unit == low_unit == high_unit:
        return f"{value} {unit} ({low} – {high})"
    return f"{value} {unit} ({low} {low_unit} – {high} {high_unit})"


def amount(value: float) -> str:
    """Return a quantity with thousands separated and no more digits than matter; the smallest only as small.

    >>> [amount(value) for value in (0.0, 4.16e-05, 0.05, 12.345, 1470.0)]
    ['0', '< 0.01', '0.05', '12.3', '1,470']
    """
    if 0.0 < value < 0.01:
        return "< 0.01"
    return f"{value:.2f}" if 0.0 < value < 1.0 else _digits(value)


def _digits(value: float) -> str:
    """Return a number to three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def aligned(rows: Sequence[Mapping[str, str]], titles: Sequence[str], right: Sequence[str] = ()) -> list[str]:
    """Return the lines of a table, its titles first; columns that are empty in all rows are left out.

    Args:
        rows: the cells by title; an absent one is empty.
        titles: of the columns, in order.
        right: titles of columns that are aligned to the right.
    """
    shown = [title for title in titles if any(row.get(title) for row in rows)]
    widths = {title: max(len(title), *(len(row.get(title, "")) for row in rows)) for title in shown}
    lines = [{title: title for title in shown}, *rows]
    return [
        "  ".join(
            f"{line.get(title, ''):>{widths[title]}}" if title in right else f"{line.get(title, ''):<{widths[title]}}"
            for title in shown
        ).rstrip()
        for line in lines
    ]
