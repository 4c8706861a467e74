"""The page's charts as SVG: stacked bars and a scatter, axes with units, in colours that everybody can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

# Okabe and Ito 2008, "Color Universal Design": told apart with any kind of colour vision; greys for what is idle.
COLOURS = {
    "forward": "#56b4e9",
    "recompute": "#a9dcf7",
    "backward": "#e69f00",
    "tensor-parallel traffic": "#0072b2",
    "context-parallel traffic": "#4d94c4",
    "expert-parallel traffic": "#003f66",
    "pipeline traffic": "#d55e00",
    "waiting for the host": "#7f7f7f",
    "bubble": "#c8c8c8",
    "data-parallel, exposed": "#cc79a7",
    "optimizer": "#009e73",
    "parameter gather": "#e5a9c8",
    "waiting for other stages": "#e2e2e2",
    "weights": "#0072b2",
    "gradients": "#56b4e9",
    "optimizer states": "#009e73",
    "activations": "#e69f00",
    "at work": "#f0c35a",
    "buffers": "#cc79a7",
    "allowance": "#c8c8c8",
}
WIDTH, LEFT, RIGHT = 900, 90, 30
BAR, GAP, AXIS = 20, 6, 44
MAX_BAR_ROWS = 64


class Bar(NamedTuple):
    """One stacked bar: its label, and the size of each part by name."""

    label: str
    parts: dict[str, float]


class Point(NamedTuple):
    """One point of a scatter."""

    x: float
    y: float
    label: str
    is_marked: bool


def ticks(largest: float, wanted: int = 6) -> list[float]:
    """Return round numbers from 0 up to at least ``largest``."""
    step = 10.0 ** floor(log10(largest / wanted)) if largest > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if largest / (step * factor) <= wanted)
    return [step * i for i in range(ceil(largest / step - 1e-9) + 1)]


def _open(width: int, height: float, label: str, above: int = 0) -> str:
    return f'<svg viewBox="0 {-above} {width} {height + above:.0f}" role="img" aria-label="{escape(label)}">'


def _axis(marks: Sequence[float], scale: float, height: float, unit: str) -> list[str]:
    """Return a horizontal axis with its grid and its unit."""
    lines = []
    for mark in marks:
        x = LEFT + mark * scale
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:.1f}"/>')
        lines.append(f'<text x="{x:.1f}" y="{height + 15:.1f}" text-anchor="middle">{mark:,g}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*lines, f'<text x="{middle:.0f}" y="{height + 34:.1f}" text-anchor="middle">{escape(unit)}</text>']


def bars(rows: Sequence[Bar], unit: str, label: str, limit: float | None = None) -> str:
    """Return stacked bars, one below the other; ``limit`` is drawn as a line across them."""
    shown = rows[:MAX_BAR_ROWS]
    marks = ticks(max([sum(row.parts.values()) for row in shown] + ([limit] if limit else [])) or 1.0)
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    height = len(shown) * (BAR + GAP)
    lines = [_open(WIDTH, height + AXIS, label), *_axis(marks, scale, height, unit)]
    for i, row in enumerate(shown):
        y, x = i * (BAR + GAP) + GAP / 2, float(LEFT)
        lines.append(f'<text x="{LEFT - 8}" y="{y + BAR * 0.72:.1f}" text-anchor="end">{escape(row.label)}</text>')
        for name, size in row.parts.items():
            if size <= 0:
                continue
            title = f"<title>{escape(row.label)}: {escape(name)} {size:,.4g} {escape(unit)}</title>"
            rectangle = f'x="{x:.2f}" y="{y:.1f}" width="{size * scale:.2f}" height="{BAR}"'
            lines.append(f'<rect {rectangle} fill="{COLOURS[name]}">{title}</rect>')
            x += size * scale
    if limit:
        x = LEFT + limit * scale
        lines.append(f'<line class="limit" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:.1f}"/>')
    return "".join([*lines, "</svg>"])


def legend(rows: Sequence[Bar]) -> str:
    """Return the names of all parts that occur, with their colours."""
    names = dict.fromkeys(name for row in rows for name, size in row.parts.items() if size > 0)
    entries = (f'<li><i style="background:{COLOURS[name]}"></i>{escape(name)}</li>' for name in names)
    return f'<ul class="legend">{"".join(entries)}</ul>'


def interval(us: float, low_us: float, high_us: float) -> str:
    """Return a step time inside its interval, as a line with a dot, times in seconds."""
    seconds = [value / 1e6 for value in (us, low_us, high_us)]
    unit = "s"
    if seconds[2] < 1.0:
        seconds, unit = [value * 1e3 for value in seconds], "ms"
    marks = ticks(seconds[2] * 1.05)
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    x, low, high = (LEFT + value * scale for value in seconds)
    label = f"step time with its 90 % interval, {unit}"
    parts = [
        _open(WIDTH, 34 + AXIS, label),
        *_axis(marks, scale, 34, label),
        f'<line class="interval" x1="{low:.1f}" y1="17" x2="{high:.1f}" y2="17"/>',
        f'<circle class="dot" cx="{x:.1f}" cy="17" r="6"/></svg>',
    ]
    return "".join(parts)


def scatter(points: Sequence[Point], x_label: str, y_label: str) -> str:
    """Return a scatter, both axes from 0; marked points stand out, every point says what it is."""
    bottom = 320
    x_marks, y_marks = ticks(max(p.x for p in points)), ticks(max(p.y for p in points))
    x_scale, y_scale = (WIDTH - LEFT - RIGHT) / x_marks[-1], bottom / y_marks[-1]
    lines = [_open(WIDTH, bottom + AXIS, f"{y_label} over {x_label}", above=10)]
    lines += _axis(x_marks, x_scale, bottom, x_label)
    for mark in y_marks:
        y = bottom - mark * y_scale
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:,g}</text>')
    lines.append(
        f'<text transform="translate(18 {bottom / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    for point in sorted(points, key=lambda one: one.is_marked):
        x, y = LEFT + point.x * x_scale, bottom - point.y * y_scale
        kind, radius = ("marked", 6) if point.is_marked else ("point", 4)
        title = f"<title>{escape(point.label)}</title>"
        lines.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{title}</circle>')
    return "".join([*lines, "</svg>"])
