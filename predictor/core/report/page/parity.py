"""Predicted against measured, both axes logarithmic and alike, every prediction with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from predictor.core.base.drawing import BLUE, VERMILION, element, text
from predictor.core.report.page.charts import FEW_TICKS, percent

SIZE, LEFT, TOP, RIGHT, BOTTOM = 460, 84, 14, 30, 56
RADIUS = 5.0
MANY_DECADES, FEWEST_TICKS = 2.5, 3
# Multiples of powers of ten, more of them where the ones before are too few.
FEW_DECADES: tuple[Sequence[int], ...] = ((1, 2, 5), range(1, 10))
ONE_A_DECADE: tuple[Sequence[int], ...] = ((1,),)
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
    """Return round numbers between two: powers of ten, and as many of their multiples as it takes to see a scale.

    >>> log_ticks(0.9, 12.0), log_ticks(300.0, 800.0)
    ([1.0, 2.0, 5.0, 10.0], [300.0, 400.0, 500.0, 600.0, 700.0, 800.0])
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    marks: list[float] = []
    for factors in FEW_DECADES if log10(high / low) < MANY_DECADES else ONE_A_DECADE:
        if len(marks) < FEWEST_TICKS:
            marks = [float(f"{factor}e{power}") for power in powers for factor in factors]
            marks = [mark for mark in marks if low <= mark <= high]
    return marks


def parity(points: Sequence[ParityPoint], what: str) -> str:
    """Return the plot with its legend, a square as wide as there is room up to SIZE.

    A circle lies inside its interval, a square outside, in another colour; the line is where both times are equal.

    Args:
        points: at least one, all times positive.
        what: they are of, for the axes.
    """
    times = [us / 1e3 for point in points for us in point[:4]]
    low, high = min(times) / ROOM, max(times) * ROOM

    def at(us: float) -> float:
        return log10(us / 1e3 / low) / log10(high / low)

    shapes = [
        *_axes([(mark, at(mark * 1e3)) for mark in log_ticks(low, high)], what),
        element("line", x1="0%", y1="100%", x2="100%", y2="0%", stroke="#7f7f7f", stroke_dasharray="5 4"),
    ]
    for point in points:
        x, y = percent(at(point.measured_us)), percent(1.0 - at(point.predicted_us))
        colour = BLUE if point.is_inside else VERMILION
        ends = {"y1": percent(1.0 - at(point.low_us)), "y2": percent(1.0 - at(point.high_us))}
        shapes.append(element("line", x1=x, x2=x, **ends, stroke=colour, stroke_width=1.5, opacity=0.6))
        title = (
            f"{point.label}: predicted {point.predicted_us / 1e3:,.4g} ms ({point.low_us / 1e3:,.4g} – "
            f"{point.high_us / 1e3:,.4g}), measured {point.measured_us / 1e3:,.4g} ms"
        )
        shapes.append(_mark(x, y, colour, point.is_inside, title))
    margins = f"margin:{TOP}px {RIGHT}px {BOTTOM}px {LEFT}px;width:calc(100% - {LEFT + RIGHT}px);max-width:{SIZE}px"
    label = f"{what}: predicted over measured"
    plot = element("svg", "".join(shapes), class_="chart square", role="img", aria_label=label, style=margins)
    return f"<figure>{plot}{LEGEND}</figure>"


def _axes(marks: Sequence[tuple[float, float]], what: str) -> list[str]:
    """Return both axes; marks are times in ms with their place, from 0 to 1."""
    shapes = []
    for number, (mark, place) in enumerate(marks):
        x, y = percent(place), percent(1.0 - place)
        minor = "minor" if number % 2 and len(marks) > FEW_TICKS else None
        shapes += [
            element("line", class_="grid", x1=x, y1="0%", x2=x, y2="100%"),
            element("line", class_="grid", x1="0%", y1=y, x2="100%", y2=y),
            text(x, "100%", f"{mark:,g}", dy=17.0, text_anchor="middle", class_=minor),
            text(-8, y, f"{mark:,g}", dy=4.0, text_anchor="end"),
        ]
    said = text(0, 0, f"{what} predicted, ms", text_anchor="middle", transform="rotate(-90)")
    shapes.append(text("50%", "100%", f"{what} measured, ms", dy=40.0, text_anchor="middle"))
    shapes.append(element("svg", said, x=str(20 - LEFT), y="50%", class_="here"))
    return shapes


def _mark(x: str, y: str, colour: str, is_circle: bool, title: str) -> str:
    if is_circle:
        return element("circle", cx=x, cy=y, r=RADIUS, fill=colour, fill_opacity=0.8, title=title)
    side = 2 * RADIUS - 1
    corner = f"translate({-side / 2} {-side / 2})"
    return element("rect", x=x, y=y, width=side, height=side, transform=corner, fill=colour, opacity=0.8, title=title)


LEGEND = (
    f'<ul class="legend"><li><i class="round" style="background:{BLUE}"></i>inside its 90 % interval</li>'
    f'<li><i style="background:{VERMILION}"></i>outside</li></ul>'
)
