"""Amounts that a plan may choose from: numbers of GPUs, batches, and the date of a deadline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta

from predictor.core.base.quantities import HOURS_PER_DAY
from predictor.layout_search.gpu_counts import doublings

SPELLED = '64, [64, 128], "up to 1024" or "64 to 1024"'
UP_TO = re.compile(r"(?:up\s*to|<=|\.\.)\s*([\d,_]+)", re.IGNORECASE)
FROM_TO = re.compile(r"([\d,_]+)\s*(?:to|-|–|\.\.)\s*([\d,_]+)", re.IGNORECASE)
LIST = re.compile(r"\d+(?:\s*,\s*\d+)*")
# 1,024 may be a number or a list of two; a list with spaces, 64, 128, is one.
AMBIGUOUS = re.compile(r"\d{1,3}(?:,\d{3})+")
LARGEST_COUNT = 10_000_000
PARTS = 2  # of a doubling of GPUs, between which numbers are tried


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers: those listed, or a range of them.

    Attributes:
        listed: numbers one by one; empty for a range.
        least: of a range; None: the smallest that there is, such as a node's GPUs.
        most: of a range.
    """

    listed: tuple[int, ...] = ()
    least: int | None = None
    most: int = 0


def _checked(number: int) -> int:
    if not 0 < number <= LARGEST_COUNT:
        raise ValueError(f"{number:,} is not between 1 and {LARGEST_COUNT:,}")
    return number


def _number(text: str) -> int:
    return _checked(int(text.replace(",", "").replace("_", "")))


def as_range(value: object) -> object:
    """Return a range of whole numbers as a file or an option writes it.

    Raises:
        ValueError: it is written in no known way.

    >>> as_range("up to 512"), as_range("64-512").least, as_range([64, 128]).listed
    (Range(listed=(), least=None, most=512), 64, (64, 128))
    """
    if isinstance(value, Range):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Range((_checked(value),))
    if isinstance(value, list | tuple) and value and all(type(each) is int for each in value):
        return Range(tuple(sorted({_checked(each) for each in value})))
    text = str(value).strip()
    if AMBIGUOUS.fullmatch(text):
        listed = ", ".join(str(int(each)) for each in text.split(","))
        raise ValueError(f"a number or a list? write {text.replace(',', '')}, or [{listed}]")
    if LIST.fullmatch(text):
        return Range(tuple(sorted({_number(each) for each in text.split(",")})))
    if (found := UP_TO.fullmatch(text)) is not None:
        return Range(most=_number(found[1]))
    if (found := FROM_TO.fullmatch(text)) is not None:
        least, most = _number(found[1]), _number(found[2])
        if least > most:
            raise ValueError(f"it begins above its end, {most:,}")
        return Range(least=least, most=most)
    raise ValueError(f"expected {SPELLED}")


def gpu_counts(given: Range, gpus_per_node: int) -> tuple[int, ...]:
    """Return numbers of GPUs to plan with: those listed, or whole nodes of a range, doubled and in the middle between.

    A range that is smaller than a node has the powers of two in it.

    >>> gpu_counts(Range(most=64), 8), gpu_counts(Range(most=4), 8), gpu_counts(Range(least=100, most=200), 8)
    ((8, 16, 24, 32, 48, 64), (1, 2, 3, 4), (104, 200))
    """
    if given.listed:
        return given.listed
    if given.most < gpus_per_node:
        return tuple(count for count in doublings(1, given.most, PARTS) if count >= (given.least or 1))
    nodes = -(-(given.least or 1) // gpus_per_node), given.most // gpus_per_node
    counts = {count * gpus_per_node for count in (*doublings(*nodes, PARTS), nodes[1]) if nodes[0] <= count}
    return tuple(sorted(counts))


def batch_sizes(given: Range) -> tuple[int, ...]:
    """Return batches: those listed, or the first of a range with its doublings.

    >>> batch_sizes(Range(least=256, most=1024))
    (256, 512, 1024)
    """
    if given.listed:
        return given.listed
    count, found = given.least or 1, []
    while count <= given.most:
        found.append(count)
        count *= 2
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Start and deadline of a training.

    Attributes:
        start: day on whose morning it begins.
        deadline: a day, which counts, or a number of days; None: whenever.
    """

    start: date
    deadline: date | float | None = None

    @property
    def hours(self) -> float | None:
        """Return the hours until the deadline; None without one."""
        if self.deadline is None:
            return None
        days = (self.deadline - self.start).days + 1 if isinstance(self.deadline, date) else self.deadline
        return days * HOURS_PER_DAY

    def day(self, hours: float) -> date | None:
        """Return the day in which so many hours end; None beyond the calendar.

        >>> Calendar(date(2027, 1, 1)).day(47.0), Calendar(date(2027, 1, 1), date(2027, 1, 2)).hours
        (datetime.date(2027, 1, 2), 48.0)
        """
        try:
            return self.start + timedelta(hours=max(hours - 1e-6, 0.0))
        except OverflowError:
            return None


def spelled(day: date | None) -> str:
    """Return a day as people write it.

    >>> spelled(date(2027, 3, 3)), spelled(None)
    ('3 March 2027', 'no day of the calendar')
    """
    return "no day of the calendar" if day is None else f"{day.day} {day:%B %Y}"
