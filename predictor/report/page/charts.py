"""The page's charts as SVG: stacked bars and a scatter, axes with units, in a colour-blind safe palette."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from predictor.base.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION, element, text, ticks

# Grey for idle time, shades of a colour for related parts.
COLOURS = {
    "forward": SKY_BLUE,
    "recompute": "#a9dcf7",
    "backward": ORANGE,
    "tensor-parallel traffic": BLUE,
    "context-parallel traffic": "#4d94c4",
    "expert-parallel traffic": "#003f66",
    "pipeline traffic": VERMILION,
    "waiting for the host": "#7f7f7f",
    "bubble": "#c8c8c8",
    "data-parallel, exposed": PURPLE,
    "optimizer": GREEN,
    "parameter gather": "#e5a9c8",
    "waiting for other stages": "#e2e2e2",
    "weights": BLUE,
    "gradients": SKY_BLUE,
    "optimizer states": GREEN,
    "activations": ORANGE,
    "at work": "#f0c35a",
    "buffers": PURPLE,
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


def _chart(height: float, label: str, shapes: Iterable[str], above: int = 0) -> str:
    box = f"0 {-above} {WIDTH} {height + AXIS + above:.0f}"
    return element("svg", "".join(shapes), viewBox=box, role="img", aria_label=label)


def _grid(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> str:
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)


def _axis(marks: Sequence[float], scale: float, height: float, unit: str) -> Iterator[str]:
    """Return a horizontal axis with its grid and its unit."""
    for mark in marks:
        x = LEFT + mark * scale
        yield _grid(x, 0, x, height)
        yield text(x, height + 15, f"{mark:,g}", text_anchor="middle")
    yield text(LEFT + (WIDTH - LEFT - RIGHT) / 2, height + 34, unit, text_anchor="middle")


def bars(rows: Sequence[Bar], unit: str, label: str, limit: float | None = None) -> str:
    """Return stacked bars, one below the other; ``limit`` is drawn as a line across them."""
    shown = rows[:MAX_BAR_ROWS]
    marks = ticks(max([sum(row.parts.values()) for row in shown] + ([limit] if limit else [])) or 1.0)
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    height = len(shown) * (BAR + GAP)
    shapes = [*_axis(marks, scale, height, unit)]
    for i, row in enumerate(shown):
        y, x = i * (BAR + GAP) + GAP / 2, float(LEFT)
        shapes.append(text(LEFT - 8, y + BAR * 0.72, row.label, text_anchor="end"))
        for name, size in row.parts.items():
            if size <= 0:
                continue
            title = f"{row.label}: {name} {size:,.4g} {unit}"
            shapes.append(element("rect", x=x, y=y, width=size * scale, height=BAR, fill=COLOURS[name], title=title))
            x += size * scale
    if limit:
        x = LEFT + limit * scale
        shapes.append(_grid(x, 0, x, height, "limit"))
    return _chart(height, label, shapes)


def legend(rows: Sequence[Bar]) -> str:
    """Return the names of all parts, with their colours."""
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
    dot = element("circle", class_="dot", cx=x, cy=17, r=6)
    return _chart(34, label, [*_axis(marks, scale, 34, label), _grid(low, 17, high, 17, "interval"), dot])


def scatter(points: Sequence[Point], x_label: str, y_label: str) -> str:
    """Return a scatter, both axes from 0; marked points stand out, every point has a tooltip."""
    bottom = 320
    x_marks, y_marks = ticks(max(p.x for p in points)), ticks(max(p.y for p in points))
    x_scale, y_scale = (WIDTH - LEFT - RIGHT) / x_marks[-1], bottom / y_marks[-1]
    shapes = [*_axis(x_marks, x_scale, bottom, x_label)]
    for mark in y_marks:
        y = bottom - mark * y_scale
        shapes.append(_grid(LEFT, y, WIDTH - RIGHT, y))
        shapes.append(text(LEFT - 8, y + 4, f"{mark:,g}", text_anchor="end"))
    turned = f"translate(18 {bottom / 2}) rotate(-90)"
    shapes.append(text(0, 0, y_label, transform=turned, text_anchor="middle"))
    for point in sorted(points, key=lambda point: point.is_marked):
        x, y = LEFT + point.x * x_scale, bottom - point.y * y_scale
        kind, radius = ("marked", 6) if point.is_marked else ("point", 4)
        shapes.append(element("circle", class_=kind, cx=x, cy=y, r=radius, title=point.label))
    return _chart(bottom, f"{y_label} over {x_label}", shapes, above=10)
