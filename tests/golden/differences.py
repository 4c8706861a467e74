"""How two sets of stored predictions differ, number by number and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.golden.documents import SIGNIFICANT_DIGITS, Sections

Predictions = Mapping[str, Sections]

RELATIVE = 1e-9
# Waiting is the rest that other parts leave of a step, so it is as exact as the step, and where there is none, noise.
# A trace counts whole nanoseconds.
OF_LONGEST, TRACE_OF_LONGEST = 1e-12, 1e-9
ABSENT = "absent"
NAME_WIDTH = 64


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return path and value of everything in nested mappings and lists that is neither."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path} › {key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _is_time(path: str) -> bool:
    return "_us" in path or path.startswith("trace")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(path: str, old: Any, new: Any, longest: float) -> bool:
    """Return whether two values are equal: words and whole numbers exactly, other numbers but for rounding.

    A time that is absent is zero: columns of zeros are not stored.
    """
    if ABSENT in (old, new) and _is_time(path):
        old, new = (0.0 if value == ABSENT else value for value in (old, new))
    if not (_is_number(old) and _is_number(new)):
        return type(old) is type(new) and bool(old == new)
    if isinstance(old, int) and isinstance(new, int):
        return old == new
    noise = longest * (TRACE_OF_LONGEST if path.startswith("trace") else OF_LONGEST) if _is_time(path) else 0.0
    return math.isclose(old, new, rel_tol=RELATIVE, abs_tol=noise)


def changes(old: Sections, new: Sections) -> list[tuple[str, Any, Any]]:
    """Return path, old and new value of all that two predictions of one configuration say differently."""
    before, after = dict(leaves(old)), dict(leaves(new))
    times = [abs(value) for path, value in before.items() if _is_time(path) and _is_number(value)]
    longest = max(times, default=0.0)
    paths = [*before, *(path for path in after if path not in before)]
    pairs = ((path, before.get(path, ABSENT), after.get(path, ABSENT)) for path in paths)
    return [(path, a, b) for path, a, b in pairs if not _same(path, a, b, longest)]


def headline(sections: Sections) -> float | None:
    """Return the step time that stands for a configuration, in microseconds; the fastest layout's of a search."""
    for path, value in leaves(sections):
        if path.endswith(("time_us", "step_us")):
            return float(value)
    return None


def _shown(value: Any) -> str:
    return f"{value:.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else str(value)


def _step(us: float | None) -> str:
    return "–" if us is None else f"{us / 1e6:.6f} s"


def _row(name: str, old: Sections | None, new: Sections | None) -> str:
    """Return one line about one configuration that changed."""
    before, after = (None if sections is None else headline(sections) for sections in (old, new))
    if old is None or new is None:
        return f"{name:{NAME_WIDTH}} {'new' if old is None else 'gone'}, {_step(after if old is None else before)}"
    change = f"{after / before - 1.0:+.4%}" if before and after is not None else ""
    count = len(changes(old, new))
    return f"{name:{NAME_WIDTH}} {_step(before):>14} -> {_step(after):>14} {change:>10}  {count:4} values differ"


def table(old: Predictions, new: Predictions) -> list[str]:
    """Return a line for every configuration that changed, came or went."""
    names = [*new, *(name for name in old if name not in new)]
    return [
        _row(name, old.get(name), new.get(name))
        for name in names
        if name not in old or name not in new or changes(old[name], new[name])
    ]


def first_differences(old: Predictions, new: Predictions, most: int = 20, of_each: int = 4) -> list[str]:
    """Return the first values that differ, a few of each configuration."""
    lines = []
    for name in new:
        if name in old:
            for path, before, after in changes(old[name], new[name])[:of_each]:
                lines.append(f"{name}: {path}: {_shown(before)} -> {_shown(after)}")
    rest = len(lines) - most
    return [*lines[:most], *([f"and {rest} more of these"] if rest > 0 else [])]
