"""Log-log plots as SVG text: axes with units, colour-blind safe colours and marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, log10
from typing import Literal

from predictor.core.base.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    element,
    path,
    pixels,
    text,
)

# Yellow is left out: it is too light for a mark on white.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)
MARKS = ("circle", "square", "triangle", "diamond")
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 26, 44
MARK_PX = 3.0
LABELLED_DECADES = 7


@dataclass(frozen=True, slots=True)
class Series:
    """Points or a line."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: Literal["points", "line", "both"] = "points"
    colour: str = COLOURS[0]
    mark: str = MARKS[0]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: what it shows, its unit among it, and its ends as powers of ten."""

    label: str
    low: int
    high: int
    length: float

    def at(self, value: float) -> float:
        """Return the distance of a value from the axis's low end in pixels."""
        return (log10(value) - self.low) / (self.high - self.low) * self.length

    def ticks(self) -> range:
        """Return the powers of ten that carry a label."""
        return range(self.low, self.high + 1, max(1, ceil((self.high - self.low) / LABELLED_DECADES)))


def style(index: int) -> tuple[str, str]:
    """Return colour and mark of the n-th of some series; they differ in both as long as they can."""
    return COLOURS[index % len(COLOURS)], MARKS[index % len(MARKS)]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)


def _mark(kind: str, x: float, y: float, colour: str) -> str:
    r = MARK_PX
    corners = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "triangle": [(0.0, -r * 1.2), (r * 1.1, r), (-r * 1.1, r)],
        "diamond": [(0.0, -r * 1.3), (r * 1.3, 0.0), (0.0, r * 1.3), (-r * 1.3, 0.0)],
    }
    if kind == "circle":
        return element("circle", cx=x, cy=y, r=r, fill=colour, fill_opacity=0.6)
    points = " ".join(f"{pixels(x + dx)},{pixels(y + dy)}" for dx, dy in corners[kind])
    return element("polygon", points=points, fill=colour, fill_opacity=0.6)


def _frame(title: str, across: Axis, up: Axis) -> Iterator[str]:
    yield text(LEFT, 15, title, class_="title")
    bottom, middle, centre = TOP + up.length, LEFT + across.length / 2, TOP + up.length / 2
    for power in across.ticks():
        x = LEFT + across.at(10.0**power)
        yield path(f"M{pixels(x)} {TOP}V{pixels(bottom)}", class_="grid")
        yield element("text", _power(power), x=x, y=bottom + 14, class_="tick middle")
    for power in up.ticks():
        y = bottom - up.at(10.0**power)
        yield path(f"M{LEFT} {pixels(y)}h{pixels(across.length)}", class_="grid")
        yield element("text", _power(power), x=LEFT - 5, y=y + 3, class_="tick end")
    yield text(middle, bottom + 34, across.label, class_="axis middle")
    yield text(14, centre, up.label, class_="axis middle", transform=f"rotate(-90 14 {pixels(centre)})")


def _power(power: int) -> str:
    return "10" + element("tspan", str(power), dy=-4, font_size=8)


def _draw(series: Series, across: Axis, up: Axis) -> str:
    bottom = TOP + up.length
    places = [(LEFT + across.at(x), bottom - up.at(y)) for x, y in series.points]
    parts = []
    if series.kind != "points":
        line = "M" + "L".join(f"{pixels(x)} {pixels(y)}" for x, y in places)
        dash = "5 4" if series.dashed else None
        parts.append(path(line, fill="none", stroke=series.colour, stroke_width=1.5, stroke_dasharray=dash))
    if series.kind != "line":
        parts += [_mark(series.mark, x, y, series.colour) for x, y in places]
    return element("g", "".join(parts), title=series.label)


def _legend(series: Sequence[Series], x: float) -> Iterator[str]:
    for index, entry in enumerate(entry for entry in series if entry.label):
        y = TOP + 10 + 15 * index
        line = path(f"M{pixels(x)} {y - 3}h12", stroke=entry.colour)
        yield line if entry.kind == "line" else _mark(entry.mark, x + 6, y - 3, entry.colour)
        yield text(x + 17, y, entry.label, class_="tick")


def log_plot(
    title: str, axes: tuple[str, str], series: Sequence[Series], size: tuple[int, int], equal: bool = False
) -> str:
    """Return a plot with logarithmic axes.

    Args:
        title: above it.
        axes: labels across and up, with units.
        series: what it shows; points that are not positive are left out.
        size: of the axes, pixels.
        equal: both axes from and to the same values.
    """
    drawn = [replace(each, points=[point for point in each.points if min(point) > 0.0]) for each in series]
    drawn = [each for each in drawn if each.points]
    if not drawn:
        return f"<p>{escape(title)}: nothing to show.</p>"
    ends = [_decades([point[i] for each in drawn for point in each.points]) for i in (0, 1)]
    if equal:
        ends = [(min(e[0] for e in ends), max(e[1] for e in ends))] * 2
    across, up = (Axis(axes[i], *ends[i], float(size[i])) for i in (0, 1))
    labels = [each.label for each in drawn if each.label]
    legend = 30 + 6.2 * max(map(len, labels)) if labels else 0.0
    width = LEFT + size[0] + RIGHT + legend
    height = max(TOP + size[1] + BOTTOM, TOP + 10 + 15 * len(labels) if legend else 0)
    shapes = [*_frame(title, across, up), *(_draw(each, across, up) for each in drawn)]
    if legend:
        shapes += _legend(drawn, LEFT + size[0] + 12)
    size_px = {"width": f"{width:.0f}", "height": f"{height:.0f}"}
    return element("svg", "\n".join(shapes), xmlns="http://www.w3.org/2000/svg", role="img", **size_px)
