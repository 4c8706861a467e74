"""A predicted step as a picture: one row per stage, time to the right, as SVG.

Recomputation has the colour of the forward pass that it repeats, hatched. Of several model chunks the first is the
darkest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from math import ceil, floor, log10
from operator import itemgetter
from typing import NamedTuple

from predictor.core.base.drawing import GREEN, ORANGE, PURPLE, SKY_BLUE, YELLOW, element, pixels, round_step, text
from predictor.core.timeline.pipeline import PASS_NAMES, Stream
from predictor.core.timeline.schedules import Pass
from predictor.core.timeline.spans import Span
from predictor.core.timeline.trace import RECOMPUTE, StepTrace

# CSS variables of the enclosing page, if there is one, so that the picture follows its dark mode.
INK, SOFT = "var(--ink, #1c1e21)", "var(--soft, #4d4d4d)"
PAPER, IDLE = "var(--paper, #ffffff)", "var(--line, #eceef1)"
MESSAGE = "message between stages"
COLOURS = {
    PASS_NAMES[Pass.FORWARD]: SKY_BLUE,
    PASS_NAMES[Pass.BACKWARD]: ORANGE,
    PASS_NAMES[Pass.WEIGHT]: YELLOW,
    MESSAGE: SOFT,
    Stream.REDUCTION: PURPLE,
    Stream.OPTIMIZER: GREEN,
}
MESSAGES = (Stream.SEND, Stream.RECEIVE)
LARGEST_MIX = 0.6
ROW_HEIGHT = (7.0, 30.0)
HEIGHT = 620.0
FONT, CHARACTER = 11, 6.6
TITLE_CHARACTER = 8.6
NUMBER_FONT, DIGIT = 10, 6.2
NARROW = 3.0  # slots of fewer pixels have no edges
NARROWEST = 0.5  # of slots of fewer pixels one is drawn where several begin, or a picture of 100,000 takes 28 MB
LEFT, RIGHT, TOP, BELOW, LEGEND_ROW = 66.0, 14.0, 52.0, 62.0, 18.0


class _Box(NamedTuple):
    """A rectangle of a picture."""

    left: float
    top: float
    width: float
    height: float


class _Frame(NamedTuple):
    """Position of time and stages in a picture."""

    width: float
    row: float
    step: float
    scale: float
    stages: int

    def box(self, stage: int, start: float, end: float) -> _Box:
        """Return the rectangle of a stage's time span."""
        gap = min(3.0, self.row / 6)
        return _Box(LEFT + start * self.scale, TOP + stage * self.row, (end - start) * self.scale, self.row - gap)

    @property
    def bottom(self) -> float:
        """Return the lower end of the last row."""
        return TOP + self.stages * self.row


def _end(trace: StepTrace) -> float:
    """Return where the last of a picture's spans ends."""
    return max([trace.step_us, *(span.end_us for span in trace.spans if span.stream not in MESSAGES)]) or 1.0


def _frame(trace: StepTrace, width: int, until_us: float) -> _Frame:
    stages = trace.num_stages
    row = min(max(HEIGHT / stages, ROW_HEIGHT[0]), ROW_HEIGHT[1])
    step = max(_end(trace), until_us)
    return _Frame(width, row, step, (width - LEFT - RIGHT) / step, stages)


def shade(colour: str, chunk: int, num_chunks: int) -> str:
    """Return the colour of a chunk: the later, the lighter."""
    mix = LARGEST_MIX * chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * mix):02x}" for part in parts)


def _text_on(colour: str) -> str:
    """Return black or white, by the luminance of the background; weights of ITU-R BT.601."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#ffffff"


def _path(boxes: Sequence[_Box], fill: str) -> str:
    """Return rectangles of one colour as one element."""
    shapes = [
        f"M{pixels(box.left)} {pixels(box.top)}h{pixels(box.width)}v{pixels(box.height)}H{pixels(box.left)}z"
        for box in boxes
    ]
    return f'<path fill="{fill}" d="{"".join(shapes)}"/>'


class _Drawn(NamedTuple):
    """A drawn pass: fill, box and the number of the micro-batch where it fits."""

    fill: str
    box: _Box
    number: str | None


def _slots(trace: StepTrace, frame: _Frame) -> Iterator[_Drawn]:
    """Return the passes of all slots; recomputation is drawn at the start of its backward pass."""
    chunks = _num_chunks(trace)
    recomputed = {(span.rank, span.start_us): span.end_us for span in trace.spans if span.name == RECOMPUTE}
    for slot in trace.slots:
        turn = slot.start_us
        if slot.details["pass"] == PASS_NAMES[Pass.BACKWARD] and slot.end_us > slot.start_us:
            turn = recomputed.get((slot.rank, slot.start_us), turn)
        if turn > slot.start_us:
            box = frame.box(slot.rank, slot.start_us, turn)
            yield _Drawn(HATCHED if box.width >= 2 * NARROW else PALE, box, None)
        box = frame.box(slot.rank, turn, slot.end_us)
        number = str(slot.details["micro_batch"])
        fits = box.width >= len(number) * DIGIT + 3 and box.height >= NUMBER_FONT
        colour = shade(COLOURS[str(slot.details["pass"])], _chunk(slot), chunks)
        yield _Drawn(colour, box, number if fits else None)


def _seen(drawn: Iterable[_Drawn]) -> Iterator[_Drawn]:
    """Return the passes that can be told apart: of the narrowest, the first in each column of a row."""
    taken: set[tuple[float, int]] = set()
    for each in drawn:
        if each.box.width >= NARROWEST:
            yield each
        elif (place := (each.box.top, int(each.box.left / NARROWEST))) not in taken:
            taken.add(place)
            yield each._replace(box=each.box._replace(width=NARROWEST))


def _chunk(slot: Span) -> int:
    return int(str(slot.details["chunk"]))


def _num_chunks(trace: StepTrace) -> int:
    return 1 + max(map(_chunk, trace.slots))


def _messages(trace: StepTrace, frame: _Frame) -> list[_Box]:
    """Return blocking messages."""
    if not trace.blocking:
        return []
    return [frame.box(span.rank, span.start_us, span.end_us) for span in trace.spans if span.stream in MESSAGES]


def _end_spans(trace: StepTrace) -> list[Span]:
    return [span for span in trace.spans if span.stream in (Stream.REDUCTION, Stream.OPTIMIZER)]


def _ends(trace: StepTrace, frame: _Frame) -> Iterator[tuple[str, _Box]]:
    """Return the end of the step; where it overlaps with slots, a reduction fills the lower quarter of the row."""
    finished = [0.0] * frame.stages
    for slot in trace.slots:
        finished[slot.rank] = max(finished[slot.rank], slot.end_us)
    for span in _end_spans(trace):
        turn = min(max(span.start_us, finished[span.rank]), span.end_us)
        if turn > span.start_us:
            box = frame.box(span.rank, span.start_us, turn)
            yield COLOURS[span.stream], _Box(box.left, box.top + box.height * 0.75, box.width, box.height / 4)
        if span.end_us > turn:
            yield COLOURS[span.stream], frame.box(span.rank, turn, span.end_us)


def _numbers(drawn: Sequence[_Drawn]) -> Iterator[str]:
    numbered = sorted((slot for slot in drawn if slot.number is not None), key=itemgetter(0))
    for fill, slots in groupby(numbered, key=itemgetter(0)):
        middles = [(box.left + box.width / 2, box.top + box.height / 2 + 3.6, number) for _, box, number in slots]
        texts = [f'<text x="{pixels(x)}" y="{pixels(y)}">{number}</text>' for x, y, number in middles]
        yield f'<g class="number" style="fill:{_text_on(fill)}">{"".join(texts)}</g>'


def _axis(frame: _Frame) -> Iterator[str]:
    """Return the time axis, in milliseconds."""
    tick = round_step(frame.step / 1000, max(2, int(frame.width // 110)))
    digits = max(0, -floor(log10(tick)))
    y = frame.bottom + 4
    yield f'<path class="axis" d="M{pixels(LEFT)} {pixels(y)}H{pixels(LEFT + frame.step * frame.scale)}"/>'
    for index in range(ceil(frame.step / 1000 / tick + 1e-9)):
        x = LEFT + index * tick * 1000 * frame.scale
        yield f'<path class="axis" d="M{pixels(x)} {pixels(y)}v5"/>'
        yield text(x, y + 17, f"{index * tick:,.{digits}f}", text_anchor="middle")
    yield text(frame.width - RIGHT, y + 31, "time, ms", text_anchor="end")


class _Entry(NamedTuple):
    """An entry of the legend: its place, its words, and its colour where it has one."""

    x: float
    row: int
    words: str
    fill: str | None


def _entries(trace: StepTrace, frame: _Frame, has_recompute: bool) -> list[_Entry]:
    """Return the legend of the picture's colours, in as many rows as its width asks for."""
    passes = {slot.details["pass"] for slot in trace.slots}
    shown = [(name, COLOURS[name]) for name in PASS_NAMES.values() if name in passes]
    if has_recompute:
        shown.insert(1, (RECOMPUTE, HATCHED))
    if _messages(trace, frame):
        shown.append((MESSAGE, COLOURS[MESSAGE]))
    streams = {span.stream for span in _end_spans(trace)}
    shown += [(str(stream), COLOURS[stream]) for stream in (Stream.REDUCTION, Stream.OPTIMIZER) if stream in streams]
    shown.append(("idle", IDLE))
    named: list[tuple[str, str | None]] = [*shown]
    chunks = _num_chunks(trace)
    if chunks > 1:
        named.append((f"chunks 0 to {chunks - 1}: dark to light", None))
    entries: list[_Entry] = []
    x, row = LEFT, 0
    for words, fill in named:
        width = (0 if fill is None else 16) + len(words) * CHARACTER
        if x > LEFT and x + width > frame.width - RIGHT:
            x, row = LEFT, row + 1
        entries.append(_Entry(x, row, words, fill))
        x += width + 16
    return entries


def _legend(entries: Sequence[_Entry], frame: _Frame) -> Iterator[str]:
    for x, row, words, fill in entries:
        y = frame.bottom + 44 + row * LEGEND_ROW
        if fill is not None:
            yield element("rect", x=x, y=y - 9, width=11, height=11, style=f"fill:{fill}")
        yield text(x if fill is None else x + 16, y, words)


def _stage_labels(frame: _Frame) -> Iterator[str]:
    every = max(1, ceil((FONT + 2) / frame.row))
    for stage in range(0, frame.stages, every):
        yield text(LEFT - 8, TOP + (stage + 0.5) * frame.row + 3, f"stage {stage}", text_anchor="end")


HATCHED, PALE = "url(#recompute)", "#aad9f4"  # pale where hatching would have no room
STYLE = f""".pipeline {{ font: {FONT}px system-ui, sans-serif; background: {PAPER}; }}
.pipeline text {{ fill: {INK}; }}
.pipeline .title {{ font-size: 15px; font-weight: 600; }}
.pipeline .number text {{ fill: inherit; font-size: {NUMBER_FONT}px; text-anchor: middle; }}
.pipeline .axis {{ stroke: {INK}; fill: none; }}
.pipeline .slots {{ stroke: {PAPER}; }}"""
HATCH = (
    '<pattern id="recompute" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="4" height="4" fill="#ffffff"/>'
    f'<rect width="2.2" height="4" fill="{COLOURS[PASS_NAMES[Pass.FORWARD]]}"/></pattern>'
)


def picture(trace: StepTrace, width: int = 1200, until_us: float = 0.0) -> str:
    """Return a step as an SVG document, also fit to stand inside an HTML page.

    Micro-batches carry their number where it fits. The time axis reaches to ``until_us`` at least, so that the pictures
    of two steps can have one axis.
    """
    frame = _frame(trace, width, until_us)
    drawn = list(_seen(_slots(trace, frame)))
    entries = _entries(trace, frame, any(slot.fill in (HATCHED, PALE) for slot in drawn))
    height = frame.bottom + BELOW + LEGEND_ROW * entries[-1].row
    by_fill = itemgetter(0)
    shapes = sorted([(slot.fill, slot.box) for slot in drawn], key=by_fill) + sorted(_ends(trace, frame), key=by_fill)
    heading = [trace.title, f"{trace.step_us / 1000:,.1f} ms"]
    title = ": ".join(heading)
    if len(title) * TITLE_CHARACTER <= width - LEFT - RIGHT:
        heading = [title]
    narrowest = frame.scale * min(slot.duration_us for slot in trace.slots)
    rows = [frame.box(stage, 0.0, _end(trace)) for stage in range(frame.stages)]
    body = [
        f"<style>{STYLE}</style>",
        f"<defs>{HATCH}</defs>",
        f'<rect width="{width}" height="{pixels(height)}" style="fill:{PAPER}"/>',
        *(text(LEFT, 22 + 19 * i, words, class_="title") for i, words in enumerate(heading)),
        *_stage_labels(frame),
        f'<g style="fill:{IDLE}">{_path(rows, "inherit")}</g>',
        f'<g class="slots" style="stroke-width:{0.6 if narrowest > NARROW else 0}">',
        *(_path([box for _, box in group], fill) for fill, group in groupby(shapes, key=by_fill)),
        "</g>",
        f'<g style="fill:{COLOURS[MESSAGE]}">{_path(_messages(trace, frame), "inherit")}</g>',
        *_numbers(drawn),
        *_axis(frame),
        *_legend(entries, frame),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pipeline" role="img" aria-label="{escape(title)}" '
        f'width="{width}" height="{pixels(height)}" viewBox="0 0 {width} {pixels(height)}">{"".join(body)}</svg>'
    )
