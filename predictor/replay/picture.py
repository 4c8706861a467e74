"""A replayed step as a picture: a row for every thread and stream of every rank, time to the right, as SVG.

Spans are painted pixel by pixel in the colour of what fills most of the pixel, so that a step of any length is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from math import ceil
from operator import itemgetter
from typing import NamedTuple

from predictor.core.base.drawing import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    YELLOW,
    element,
    path,
    pixels,
    text,
    ticks,
)
from predictor.replay.answer import Replayed
from predictor.replay.breakdown import (
    BACKWARD,
    COPIES,
    FORWARD,
    HOST,
    IDLE,
    OPTIMIZER,
    OTHER,
    SYNC,
    TRAFFIC,
    WAITING,
    part_names,
)
from predictor.replay.graph.local_graph import TaskKind

WIDTH, LEFT, RIGHT, ROW, GAP, TOP, BELOW = 980, 150, 14, 15, 3, 30, 58
CHARACTER = 7.2  # pixels, of the widest common system font at 12 px
MOST_ROWS = 64
SMALLEST_SHARE = 0.002  # of the step, that a row must be busy to be drawn
COLOURS: Mapping[str, str] = {
    FORWARD: SKY_BLUE,
    BACKWARD: ORANGE,
    OPTIMIZER: GREEN,
    OTHER: YELLOW,
    COPIES: VERMILION,
    **dict.fromkeys(TRAFFIC, PURPLE),
    WAITING: "#e2e2e2",
    HOST: "#7f7f7f",
    SYNC: "#c8c8c8",
    IDLE: "#eceef1",
}
TRAFFIC_LABEL = "traffic"
CRITICAL = BLUE
INK = "var(--ink, #1c1e21)"


class _Painted(NamedTuple):
    """A run of pixels of one colour in a row."""

    colour: str
    row: int
    first: int
    last: int


THREAD = "thread"
Rows = Sequence[tuple[int, str]]


def picture_rows(*replays: Replayed) -> list[tuple[int, str]]:
    """Return the rows that some replays keep busy, by rank, streams of the GPU below the threads of the host."""
    busy: dict[tuple[int, str], float] = {}
    for replay in replays:
        for span, role in zip(replay.replay.spans, replay.step.roles, strict=True):
            if role.kind is not TaskKind.WAIT:
                key = (span.rank, span.stream)
                busy[key] = busy.get(key, 0.0) + span.duration_us
    least = SMALLEST_SHARE * max(replay.step_us for replay in replays)
    shown = (key for key, us in busy.items() if us > least)
    return sorted(shown, key=lambda key: (key[0], not key[1].startswith(THREAD), key[1]))[:MOST_ROWS]


def timeline(replay: Replayed, rows: Rows, title: str, until_us: float) -> str:
    """Return a replayed step as SVG.

    A line below a row marks what is on the critical path.

    Args:
        replay: to draw.
        rows: rank and stream of each row.
        title: above it.
        until_us: end of the time axis, so that two pictures can have one.
    """
    scale = (WIDTH - LEFT - RIGHT) / until_us
    height = TOP + len(rows) * (ROW + GAP) + BELOW
    bottom = TOP + len(rows) * (ROW + GAP)
    painted = sorted(_painted(replay, rows, scale), key=itemgetter(0))
    shapes = [text(LEFT, 18, title, font_size="14", font_weight="600"), *_labels(rows)]
    for number in range(len(rows)):
        width = until_us * scale
        shapes.append(
            element("rect", x=LEFT, y=_top(number), width=width, height=ROW, style="fill:var(--line,#eceef1)")
        )
    for colour, group in groupby(painted, key=itemgetter(0)):
        boxes = (
            f"M{LEFT + run.first} {_top(run.row)}h{run.last - run.first}v{ROW}h{run.first - run.last}z" for run in group
        )
        shapes.append(path("".join(boxes), fill=colour))
    marks = (f"M{pixels(a)} {pixels(y)}H{pixels(b)}" for a, b, y in _critical(replay, rows, scale))
    shapes.append(path("".join(marks), stroke=CRITICAL, stroke_width=2.5))
    end = LEFT + replay.replay.makespan_us * scale
    shapes.append(path(f"M{pixels(end)} {TOP - 4}V{bottom}", stroke=INK, stroke_dasharray="4 3"))
    shapes += [*_axis(until_us, scale, bottom), *_legend(replay, bottom + 46)]
    size = {"width": str(WIDTH), "height": str(height), "viewBox": f"0 0 {WIDTH} {height}"}
    return element("svg", "".join(shapes), **size, role="img", aria_label=title, class_="timeline")


def _top(row: int) -> int:
    return TOP + row * (ROW + GAP)


def _labels(rows: Rows) -> Iterator[str]:
    for number, (rank, stream) in enumerate(rows):
        words = f"{rank}: {stream}"
        shown = words if len(words) * CHARACTER < LEFT - 12 else f"{words[: int((LEFT - 18) / CHARACTER)]}…"
        yield element("text", escape(shown), x=LEFT - 8, y=_top(number) + ROW - 3.5, text_anchor="end", title=words)


def _painted(replay: Replayed, rows: Rows, scale: float) -> Iterator[_Painted]:
    """Yield runs of pixels, each pixel in the colour of the part that fills most of it and at least a third of it."""
    numbers = {key: number for number, key in enumerate(rows)}
    filled: dict[tuple[int, int], dict[str, float]] = {}
    for span, part in zip(replay.replay.spans, part_names(replay.step), strict=True):
        number = numbers.get((span.rank, span.stream))
        if number is None or span.end_us <= span.start_us:
            continue
        first, last = span.start_us * scale, span.end_us * scale
        for pixel in range(int(first), ceil(last)):
            covered = min(last, pixel + 1) - max(first, pixel)
            parts = filled.setdefault((number, pixel), {})
            parts[COLOURS[part]] = parts.get(COLOURS[part], 0.0) + covered
    for row, group in groupby(sorted(filled), key=itemgetter(0)):
        runs: list[_Painted] = []
        for _, pixel in group:
            parts = filled[row, pixel]
            if sum(parts.values()) < 1 / 3:
                continue
            colour = max(parts, key=lambda name: parts[name])
            if runs and runs[-1].last == pixel and runs[-1].colour == colour:
                runs[-1] = runs[-1]._replace(last=pixel + 1)
            else:
                runs.append(_Painted(colour, row, pixel, pixel + 1))
        yield from runs


def _critical(replay: Replayed, rows: Rows, scale: float) -> Iterator[tuple[float, float, float]]:
    """Yield lines under the critical path; those of a row that touch are one."""
    numbers = {key: number for number, key in enumerate(rows)}
    begun: tuple[int, float, float] | None = None
    for position in replay.replay.critical_path:
        span = replay.replay.spans[position]
        number = numbers.get((span.rank, span.stream))
        if number is None or span.end_us <= span.start_us:
            continue
        first, last = LEFT + span.start_us * scale, LEFT + span.end_us * scale
        if begun is not None and begun[0] == number and first - begun[2] < 1.0:
            begun = (number, begun[1], last)
            continue
        if begun is not None:
            yield begun[1], begun[2], _top(begun[0]) + ROW + 0.5
        begun = (number, first, last)
    if begun is not None:
        yield begun[1], begun[2], _top(begun[0]) + ROW + 0.5


def _axis(until_us: float, scale: float, bottom: float) -> Iterator[str]:
    for mark in ticks(until_us / 1e3, 10):
        if mark * 1e3 <= until_us:
            x = LEFT + mark * 1e3 * scale
            yield path(f"M{pixels(x)} {bottom}v5", stroke=INK)
            yield text(x, bottom + 17, f"{mark:,g}", text_anchor="middle")
    yield text(WIDTH - RIGHT, bottom + 31, "time, ms", text_anchor="end")


def _legend(replay: Replayed, y: float) -> Iterator[str]:
    shown: dict[str, str] = {}
    for name in dict.fromkeys(part_names(replay.step)):
        if name != IDLE:
            shown.setdefault(COLOURS[name], TRAFFIC_LABEL if name in TRAFFIC else name)
    x = 8.0
    for colour, name in [*shown.items(), (CRITICAL, "critical path")]:
        height = 3 if colour == CRITICAL else 11
        yield element("rect", x=x, y=y - 9 + (11 - height) / 2, width=11, height=height, fill=colour)
        yield text(x + 16, y, name)
        x += 32 + len(name) * CHARACTER
