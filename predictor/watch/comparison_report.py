"""A run beside another, as text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from predictor.core.base.text_table import text_table
from predictor.core.base.words import counted
from predictor.core.report.text import wrapped
from predictor.watch.comparison import Compared
from predictor.watch.health import Health
from predictor.watch.json_document import to_json
from predictor.watch.text import AS_EXPECTED, LISTED, TITLE, finding_lines
from predictor.watch.words import lasting, plain, seconds, signed

FORMAT = "estimate-train-time/watch-comparison/1"


def answer(compared: Compared) -> str:
    """Return how much slower the run is than the other."""
    ratio, other = compared.ratio, compared.names[1]
    if ratio is None:
        return f"Not comparable: {' and '.join(_untimed(compared))} has no timed step yet."
    if abs(ratio) < AS_EXPECTED:
        return f"As fast as {other}."
    return f"{signed(ratio)} a step beside {other}: {'slower' if ratio > 0 else 'faster'}."


def _untimed(compared: Compared) -> list[str]:
    both = zip(compared.names, (compared.this, compared.other), strict=True)
    return [name for name, health in both if health.median_s is None]


def trust(compared: Compared) -> str:
    """Return what the answer rests on."""
    if not compared.stretches:
        return "The runs share no step numbers: their usual steps are compared."
    first, last = compared.stretches[0].first_step, compared.stretches[-1].last_step
    return f"The same steps of both, {first:,} to {last:,}: medians, so that single slow steps do not count."


def why(compared: Compared) -> str:
    """Return what changed and when."""
    if len(compared.stretches) < 2:
        return "The difference is even over the steps." if compared.stretches else "Nothing more can be said."
    said = "; ".join(
        f"{signed(stretch.ratio)} from step {stretch.first_step:,} on" for stretch in compared.stretches[:LISTED]
    )
    return f"The difference changes {counted(len(compared.stretches) - 1, 'time')}: {said}."


def _row(title: str, both: Sequence[str], ratio: float | None = None) -> tuple[str, str, str, str]:
    this, other = both
    return title, this, other, "" if ratio is None else signed(ratio)


def _level(title: str, both: Sequence[float | None], show: Callable[[float], str] = seconds) -> tuple[str, ...]:
    """Return a quantity of both runs, and how much larger this one's is."""
    this, other = both
    ratio = this / other - 1.0 if this is not None and other else None
    return _row(title, ["-" if value is None else show(value) for value in both], ratio)


def _table(compared: Compared) -> list[str]:
    both = compared.this, compared.other
    rows = [
        ("", *compared.names, "difference"),
        _level("usual step", [health.median_s for health in both]),
        _level("low end, 90 %", [health.low_s for health in both]),
        _level("high end, 90 %", [health.high_s for health in both]),
        _row("spread", ["-" if health.spread is None else f"{health.spread:.1%}" for health in both]),
    ]
    parts = dict.fromkeys([*compared.this.parts, *compared.other.parts])
    rows += [_level(part.replace("_", " "), [health.parts.get(part) for health in both]) for part in parts]
    if any(health.tokens_per_second is not None for health in both):
        rows.append(_level("tokens/s", [health.tokens_per_second for health in both], "{:,.0f}".format))
    return text_table([*rows, _row("lost", [lasting(health.lost_s) for health in both])])


def _findings(name: str, health: Health, width: int) -> list[str]:
    if not health.findings:
        return [f"{name}: no deviation"]
    lines = [f"{name}: {counted(len(health.findings), 'deviation')}"]
    for number, finding in enumerate(health.findings[:LISTED], 1):
        first, *others = finding_lines(number, finding)
        lines += [*wrapped([f"  {first}"], width, 5), *wrapped([f"  {line}" for line in others], width, 11)]
    return lines


def _stretches(compared: Compared) -> list[str]:
    if len(compared.stretches) < 2:
        return []
    rows = [("steps", *compared.names, "difference")]
    for stretch in compared.stretches:
        span = f"{stretch.first_step:,} – {stretch.last_step:,}"
        rows.append((span, seconds(stretch.this_s), seconds(stretch.other_s), signed(stretch.ratio)))
    return ["", *text_table(rows)]


def render(compared: Compared, width: int = 100) -> str:
    """Return the report, wrapped at ``width`` columns."""
    titles = {"Answer": answer(compared), "Trust": trust(compared), "Why": why(compared)}
    lines = wrapped([f"{title:{TITLE}}{words}" for title, words in titles.items()], width, TITLE)
    lines += ["", *_table(compared), *_stretches(compared), ""]
    for name, health in zip(compared.names, (compared.this, compared.other), strict=True):
        lines += _findings(name, health, width)
        lines += wrapped([f"Note on {name}: {note}" for note in health.notes], width, 6)
    return plain("\n".join(lines))


def comparison_json(compared: Compared, sources: tuple[Sequence[str], Sequence[str]], at: float) -> dict[str, Any]:
    """Return the document; ``at`` is now, in seconds since the epoch."""
    keys = ("first_step", "last_step", "steps", "this_s", "other_s", "ratio")
    return {
        "format": FORMAT,
        "names": list(compared.names),
        "relative_to_other": compared.ratio,
        "stretches": [{key: getattr(stretch, key) for key in keys} for stretch in compared.stretches],
        "this": to_json(compared.this, sources[0], at),
        "other": to_json(compared.other, sources[1], at),
    }
