"""Tables of text, and quantities as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.core.base.text_table import text_table

UNITS_S = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
LEAST = {"days": 2.0}  # hours read better until then


def interval(value_s: float, low_s: float, high_s: float) -> str:
    """Return a duration and the interval that it lies in, in the same unit.

    >>> interval(0.00748, 0.00611, 0.0104)
    '7.48 ms (6.11 – 10.4)'
    """
    unit, size = _unit(value_s)
    return f"{_digits(value_s / size)} {unit} ({_digits(low_s / size)} – {_digits(high_s / size)})"


def _unit(seconds: float) -> tuple[str, float]:
    """Return name and seconds of the largest unit of which there is one at least, as rounded to three digits."""
    large = (unit for unit in UNITS_S if seconds >= 0.9995 * unit[1] * LEAST.get(unit[0], 1.0))
    return next(large, UNITS_S[-1])


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
    left = [column for column, title in enumerate(shown) if title not in right]
    return text_table([shown, *([row.get(title, "") for title in shown] for row in rows)], left)
