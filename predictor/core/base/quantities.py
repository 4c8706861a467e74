"""Times as people read them."""

from __future__ import annotations

from math import inf

HOURS_PER_DAY = 24.0
HOURS_PER_MONTH = 730.0  # a twelfth of a year
NONE = "-"


def duration(us: float) -> str:
    """Return a duration in the unit that reads best, to four digits.

    >>> duration(81.2345), duration(1.5e6), duration(2.5e9)
    ('81.23 µs', '1.5 s', '2,500 s')
    """
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.4g} {unit}" if us < 1000 * size else f"{us / size:,.0f} {unit}"
    return f"{us:.4g} µs"


def span(hours: float) -> str:
    """Return a long duration in the unit that reads best; that of a training without progress is infinite."""
    if hours == inf:
        return "no end"
    if hours >= 2 * HOURS_PER_DAY:
        return f"{hours / HOURS_PER_DAY:,.1f} days"
    return f"{hours:.3g} h" if hours >= 1 else duration(hours * 3.6e9)


def milliseconds(us: float | None, step_us: float, sign: str = "") -> str:
    """Return milliseconds, with decimals by the length of the step; a dash for none, or less than a rounding error.

    Args:
        us: the time.
        step_us: of the step that it is part of.
        sign: "+" for a difference.

    >>> milliseconds(1234.5, 2e6), milliseconds(1234.5, 5e4), milliseconds(-0.2, 5e4, sign="+")
    ('1.2', '1.234', '-')
    """
    digits = 3 if step_us < 1e5 else 2 if step_us < 1e6 else 1
    if us is None or abs(us) < 0.5 * 10 ** (3 - digits):
        return NONE
    return f"{us / 1e3:{sign},.{digits}f}"
