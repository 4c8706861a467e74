"""Log-log plots as SVG text: axes with units, colours and marks that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Literal

# Okabe and Ito, "Color Universal Design", 2008; yellow left out, as it is too light for a mark on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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
        """Return how many pixels from its low end a value lies."""
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
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{colour}" fill-opacity=".6"/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[kind])
    return f'<polygon points="{points}" fill="{colour}" fill-opacity=".6"/>'


def _frame(title: str, across: Axis, up: Axis) -> list[str]:
    parts = [f'<text x="{LEFT}" y="15" class="title">{escape(title)}</text>']
    bottom = TOP + up.length
    for power in across.ticks():
        x = LEFT + across.at(10.0**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom:.1f}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" class="tick middle">{_power(power)}</text>')
    for power in up.ticks():
        y = bottom - up.at(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{across.length:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 3:.1f}" class="tick end">{_power(power)}</text>')
    middle, centre = LEFT + across.length / 2, TOP + up.length / 2
    parts.append(f'<text x="{middle:.0f}" y="{bottom + 34:.0f}" class="axis middle">{escape(across.label)}</text>')
    turned = f'transform="rotate(-90 14 {centre:.0f})"'
    parts.append(f'<text x="14" y="{centre:.0f}" class="axis middle" {turned}>{escape(up.label)}</text>')
    return parts


def _power(power: int) -> str:
    return f'10<tspan dy="-4" font-size="8">{power}</tspan>'


def _draw(series: Series, across: Axis, up: Axis) -> list[str]:
    bottom = TOP + up.length
    places = [(LEFT + across.at(x), bottom - up.at(y)) for x, y in series.points]
    parts = []
    if series.kind != "points":
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if series.dashed else ""
        parts.append(f'<path d="{path}" fill="none" stroke="{series.colour}" stroke-width="1.5"{dash}/>')
    if series.kind != "line":
        parts += [_mark(series.mark, x, y, series.colour) for x, y in places]
    return [f"<g><title>{escape(series.label)}</title>", *parts, "</g>"]


def _legend(series: Sequence[Series], x: float) -> list[str]:
    parts = []
    for number, one in enumerate(one for one in series if one.label):
        y = TOP + 10 + 15 * number
        line = f'<path d="M{x} {y - 3}h12" stroke="{one.colour}"/>'
        parts.append(line if one.kind == "line" else _mark(one.mark, x + 6, y - 3, one.colour))
        parts.append(f'<text x="{x + 17}" y="{y}" class="tick">{escape(one.label)}</text>')
    return parts


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
    drawn = [Series(s.label, [p for p in s.points if min(p) > 0.0], s.kind, s.colour, s.mark, s.dashed) for s in series]
    drawn = [one for one in drawn if one.points]
    if not drawn:
        return f"<p>{escape(title)}: nothing to show.</p>"
    ends = [_decades([point[i] for one in drawn for point in one.points]) for i in (0, 1)]
    if equal:
        ends = [(min(e[0] for e in ends), max(e[1] for e in ends))] * 2
    across, up = (Axis(axes[i], *ends[i], float(size[i])) for i in (0, 1))
    labels = [one.label for one in drawn if one.label]
    legend = 30 + 6.2 * max(map(len, labels)) if labels else 0.0
    width = LEFT + size[0] + RIGHT + legend
    height = max(TOP + size[1] + BOTTOM, TOP + 10 + 15 * len(labels) if legend else 0)
    parts = _frame(title, across, up)
    for one in drawn:
        parts += _draw(one, across, up)
    if legend:
        parts += _legend(drawn, LEFT + size[0] + 12)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img">'
    return "\n".join((head, *parts, "</svg>"))
