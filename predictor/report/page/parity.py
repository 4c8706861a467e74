"""Predicted against measured, both axes logarithmic and alike, every prediction with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from predictor.base.drawing import BLUE, VERMILION, element, path, pixels, text

SIZE, LEFT, TOP, RIGHT, BOTTOM = 460.0, 84.0, 14.0, 210.0, 56.0
RADIUS = 5.0
MANY_DECADES = 2.5
ROOM = 1.15  # between the outermost value and the edge


class ParityPoint(NamedTuple):
    """A measured time beside its prediction, in microseconds."""

    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float
    label: str

    @property
    def is_inside(self) -> bool:
        """Return whether the measured time lies in the interval."""
        return self.low_us <= self.measured_us <= self.high_us


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two: powers of ten, and 2 and 5 times these where few decades are shown.

    >>> log_ticks(0.9, 12.0)
    [1.0, 2.0, 5.0, 10.0]
    """
    factors = (1, 2, 5) if log10(high / low) < MANY_DECADES else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    return [mark for mark in marks if low <= mark <= high]


def parity(points: Sequence[ParityPoint], what: str) -> str:
    """Return the plot as SVG.

    A circle lies inside its interval, a square outside, in another colour; the line is where both times are equal.

    Args:
        points: at least one, all times positive.
        what: they are of, for the axes.
    """
    times = [us / 1e3 for point in points for us in point[:4]]
    low, high = min(times) / ROOM, max(times) * ROOM
    width = log10(high / low)

    def at(us: float) -> float:
        return log10(us / 1e3 / low) / width * SIZE

    bottom = TOP + SIZE
    shapes = []
    for mark in log_ticks(low, high):
        x = LEFT + at(mark * 1e3)
        y = bottom - at(mark * 1e3)
        shapes += [
            path(f"M{pixels(x)} {pixels(TOP)}V{pixels(bottom)}", class_="grid"),
            path(f"M{pixels(LEFT)} {pixels(y)}h{pixels(SIZE)}", class_="grid"),
            text(x, bottom + 17, f"{mark:,g}", text_anchor="middle"),
            text(LEFT - 8, y + 4, f"{mark:,g}", text_anchor="end"),
        ]
    shapes += [
        path(
            f"M{pixels(LEFT)} {pixels(bottom)}L{pixels(LEFT + SIZE)} {pixels(TOP)}",
            stroke="#7f7f7f",
            stroke_dasharray="5 4",
        ),
        text(LEFT + SIZE / 2, bottom + 40, f"{what} measured, ms", text_anchor="middle"),
        text(
            0, 0, f"{what} predicted, ms", text_anchor="middle", transform=f"translate(20 {TOP + SIZE / 2}) rotate(-90)"
        ),
    ]
    for point in points:
        x, y = LEFT + at(point.measured_us), bottom - at(point.predicted_us)
        colour = BLUE if point.is_inside else VERMILION
        ends = [pixels(bottom - at(us)) for us in (point.low_us, point.high_us)]
        shapes.append(path(f"M{pixels(x)} {ends[0]}V{ends[1]}", stroke=colour, stroke_width=1.5, opacity=0.6))
        title = (
            f"{point.label}: predicted {point.predicted_us / 1e3:,.4g} ms ({point.low_us / 1e3:,.4g} – "
            f"{point.high_us / 1e3:,.4g}), measured {point.measured_us / 1e3:,.4g} ms"
        )
        shapes.append(_mark(x, y, colour, point.is_inside, title))
    for row, (colour, is_inside, label) in enumerate(
        ((BLUE, True, "inside its 90 % interval"), (VERMILION, False, "outside"))
    ):
        y = TOP + 14 + 20 * row
        shapes += [_mark(LEFT + SIZE + 20, y - 4, colour, is_inside, label), text(LEFT + SIZE + 32, y, label)]
    box = f"0 0 {pixels(LEFT + SIZE + RIGHT)} {pixels(bottom + BOTTOM)}"
    style = f"max-width:{pixels(LEFT + SIZE + RIGHT)}px"
    label = f"{what}: predicted over measured"
    return element("svg", "".join(shapes), viewBox=box, role="img", aria_label=label, style=style)


def _mark(x: float, y: float, colour: str, is_circle: bool, title: str) -> str:
    if is_circle:
        return element("circle", cx=x, cy=y, r=RADIUS, fill=colour, fill_opacity=0.8, title=title)
    side = 2 * RADIUS - 1
    return element(
        "rect", x=x - side / 2, y=y - side / 2, width=side, height=side, fill=colour, fill_opacity=0.8, title=title
    )
