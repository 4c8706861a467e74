"""The page's charts as SVG: stacked bars and a scatter, axes with units, in a colour-blind safe palette.

Positions along the horizontal axis are percentages and all else is in pixels, so that a chart takes the width that it
is given and its words keep their size, on a phone as on a desk. Labels stand in the margins LEFT and RIGHT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from html import escape
from typing import NamedTuple

from predictor.core.base.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION, element, pixels, text, ticks

# Grey for idle time, shades of a colour for related parts.
COLOURS = {
    "forward": SKY_BLUE,
    "recompute": "#a9dcf7",
    "backward": ORANGE,
    "tensor-parallel traffic": BLUE,
    "context-parallel traffic": "#4d94c4",
    "expert-parallel traffic": "#003f66",
    "pipeline traffic": VERMILION,
    "host-link traffic": "#8c3f00",
    "waiting for the host": "#7f7f7f",
    "bubble": "#c8c8c8",
    "data-parallel, exposed": PURPLE,
    "optimizer": GREEN,
    "parameter gather": "#e5a9c8",
    "waiting for other stages": "#e2e2e2",
    "not modelled": "#bdb9c6",
    "weights": BLUE,
    "gradients": SKY_BLUE,
    "optimizer states": GREEN,
    "activations": ORANGE,
    "at work": "#f0c35a",
    "buffers": PURPLE,
    "allowance": "#c8c8c8",
}
LEFT, RIGHT = 66, 30
BAR, GAP, AXIS = 20, 6, 44
MAX_BAR_ROWS = 64
FEW_TICKS = 4
SCATTER_HEIGHT = 320
OWN = "your layout"


class Bar(NamedTuple):
    """One stacked bar: its label, and the size of each part by name."""

    label: str
    parts: Mapping[str, float]


class Mark(StrEnum):
    """How a point of a scatter is drawn; the value is its class in the style sheet."""

    PLAIN = "point"
    FRONT = "marked"
    OWN = "own"


class Point(NamedTuple):
    """One point of a scatter."""

    x: float
    y: float
    label: str
    mark: Mark = Mark.PLAIN


def percent(share: float) -> str:
    """Return a position as a share of the chart's width.

    >>> percent(0.25)
    '25%'
    """
    return f"{pixels(100 * share)}%"


def chart(height: float, label: str, shapes: Iterable[str], left: int = LEFT, above: int = 0) -> str:
    """Return a chart between its margins.

    Args:
        height: of what lies above the axis.
        label: what it shows, for screen readers.
        shapes: horizontal positions in percent.
        left: margin for the labels.
        above: margin on top.
    """
    margins = f"margin:{above}px {RIGHT}px 0 {left}px;width:calc(100% - {left + RIGHT}px)"
    tall = pixels(height + AXIS)
    return element("svg", "".join(shapes), class_="chart", height=tall, role="img", aria_label=label, style=margins)


def _line(x1: str, y1: float, x2: str, y2: float, class_: str = "grid") -> str:
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)


def axis(marks: Sequence[float], height: float, unit: str) -> Iterator[str]:
    """Return a horizontal axis with its grid and its unit; every second number makes room on a narrow screen."""
    for number, mark in enumerate(marks):
        x = percent(mark / marks[-1])
        minor = "minor" if number % 2 and len(marks) > FEW_TICKS else None
        yield _line(x, 0, x, height)
        yield text(x, height + 15, f"{mark:,g}", text_anchor="middle", class_=minor)
    yield text("50%", height + 34, unit, text_anchor="middle")


def bars(
    rows: Sequence[Bar],
    unit: str,
    label: str,
    limit: float | None = None,
    colours: Mapping[str, str] = COLOURS,
    left: int = LEFT,
) -> str:
    """Return stacked bars, one below the other.

    Args:
        rows: all beyond MAX_BAR_ROWS are left out.
        unit: of their parts.
        label: what the chart shows.
        limit: drawn as a line across the bars.
        colours: of the parts by name.
        left: margin for the bars' labels.
    """
    shown = rows[:MAX_BAR_ROWS]
    marks = ticks(max([sum(row.parts.values()) for row in shown] + ([limit] if limit else [])) or 1.0)
    height = len(shown) * (BAR + GAP)
    shapes = [*axis(marks, height, unit)]
    for i, row in enumerate(shown):
        y, x = i * (BAR + GAP) + GAP / 2, 0.0
        shapes.append(text(-8, y + BAR * 0.72, row.label, text_anchor="end"))
        for name, size in row.parts.items():
            if size <= 0:
                continue
            share = size / marks[-1]
            title = f"{row.label}: {name} {size:,.4g} {unit}"
            box = {"x": percent(x), "width": percent(share)}
            shapes.append(element("rect", **box, y=y, height=BAR, fill=colours[name], title=title))
            x += share
    if limit:
        at = percent(limit / marks[-1])
        shapes.append(_line(at, 0, at, height, "limit"))
    return chart(height, label, shapes, left)


def legend(rows: Sequence[Bar], colours: Mapping[str, str] = COLOURS) -> str:
    """Return the names of all parts, with their colours."""
    names = dict.fromkeys(name for row in rows for name, size in row.parts.items() if size > 0)
    entries = (f'<li><i style="background:{colours[name]}"></i>{escape(name)}</li>' for name in names)
    return f'<ul class="legend">{"".join(entries)}</ul>'


def interval(us: float, low_us: float, high_us: float) -> str:
    """Return a step time inside its interval, as a line with a dot, times in seconds."""
    seconds = [value / 1e6 for value in (us, low_us, high_us)]
    unit = "s"
    if seconds[2] < 1.0:
        seconds, unit = [value * 1e3 for value in seconds], "ms"
    marks = ticks(seconds[2] * 1.05)
    x, low, high = (percent(value / marks[-1]) for value in seconds)
    label = f"step time with its 90 % interval, {unit}"
    dot = element("circle", class_="dot", cx=x, cy=17, r=6)
    return chart(34, label, [*axis(marks, 34, label), _line(low, 17, high, 17, "interval"), dot], left=RIGHT)


def _own(x: float, y: float, label: str) -> str:
    """Return the mark of one's own layout: a diamond with its name, to the side where there is room."""
    side, anchor = (12, "start") if x < 0.7 else (-12, "end")
    diamond = element("path", d="M0 -8L8 0L0 8L-8 0z", class_=Mark.OWN.value, title=label)
    named = text(side, 4, OWN, text_anchor=anchor, class_="name")
    return element("svg", diamond + named, x=percent(x), y=y, class_="here")


def scatter(points: Sequence[Point], x_label: str, y_label: str) -> str:
    """Return a scatter, both axes from 0; marked points stand out, every point has a tooltip."""
    x_marks, y_marks = ticks(max(p.x for p in points)), ticks(max(p.y for p in points))
    y_scale = SCATTER_HEIGHT / y_marks[-1]
    shapes = [*axis(x_marks, SCATTER_HEIGHT, x_label)]
    for mark in y_marks:
        y = SCATTER_HEIGHT - mark * y_scale
        shapes.append(_line("0%", y, "100%", y))
        shapes.append(text(-8, y + 4, f"{mark:,g}", text_anchor="end"))
    turned = f"translate({14 - LEFT} {SCATTER_HEIGHT / 2}) rotate(-90)"
    shapes.append(text(0, 0, y_label, transform=turned, text_anchor="middle"))
    for point in sorted(points, key=lambda point: list(Mark).index(point.mark)):
        x, y = point.x / x_marks[-1], SCATTER_HEIGHT - point.y * y_scale
        if point.mark is Mark.OWN:
            shapes.append(_own(x, y, point.label))
            continue
        radius = 6 if point.mark is Mark.FRONT else 4
        dot = {"class_": point.mark.value, "cx": percent(x), "title": point.label}
        shapes.append(element("circle", **dot, cy=y, r=radius))
    return chart(SCATTER_HEIGHT, f"{y_label} over {x_label}", shapes, above=10)


def scatter_legend(names: Mapping[Mark, str]) -> str:
    """Return what the marks of a scatter mean."""
    entries = (f'<li><i class="{mark.value}"></i>{escape(name)}</li>' for mark, name in names.items())
    return f'<ul class="legend">{"".join(entries)}</ul>'
