"""A replayed step as one self-contained HTML page: two timelines on one axis, where the step goes, what moved."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from predictor.base.drawing import element, text, ticks
from predictor.replay.answer import ReplayAnswer, Replayed, measured
from predictor.replay.collectives import collective_totals
from predictor.replay.picture import COLOURS, picture_rows, timeline
from predictor.replay.text import (
    COLLECTIVE_HEAD,
    OPERATOR_HEAD,
    PATH_HEAD,
    bottleneck,
    changed_words,
    collective_cells,
    gap_words,
    operator_cells,
    path_cells,
    shown_parts,
    wait_lines,
)
from predictor.report.page.style import STYLE
from predictor.report.text import duration

LISTED = 40
WIDTH, LEFT, RIGHT, BAR, GAP = 900, 150, 30, 20, 6
MOST_BARS = 32


def page(answer: ReplayAnswer) -> str:
    """Return the page."""
    as_measured, shown = measured(answer.before.step), answer.shown
    first = answer.before.step.ranks[0]
    title = f"{first.label}: {duration(shown.step_us)}"
    sections = [
        _headline(answer),
        _section("When", *_timelines(answer, as_measured)),
        _section(
            "Where the step goes",
            *_bars(answer, as_measured),
            f"<p>{escape(bottleneck(answer))} {escape(gap_words(shown))}</p>",
        ),
        _section("Critical path", _path(shown)),
        _section("Operators of a rank", _operators(shown)),
        _section("What moved on the critical path", _moves(answer)) if answer.after is not None else "",
        _collectives(shown),
        _section("To know before trusting it", _listed([*answer.notes, *_change_notes(answer)])),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _listed(lines: Sequence[str]) -> str:
    return (
        f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
        if lines
        else "<p>Nothing beyond the above.</p>"
    )


def _change_notes(answer: ReplayAnswer) -> list[str]:
    return [f"{applied.text}: {note}" for applied in answer.applied for note in applied.touched.notes]


def _headline(answer: ReplayAnswer) -> str:
    replay = f"replayed unchanged {duration(answer.before.step_us)}, {answer.error_words}"
    said = f"measured {duration(answer.measured_us)}; {replay}"
    if answer.after is not None:
        said = f"{changed_words(answer)}; {said}"
    rows = [
        [
            applied.text,
            applied.touched.what,
            duration(applied.touched.before_us),
            duration(applied.touched.after_us),
        ]
        for applied in answer.applied
    ]
    changes = _table(["change", "touched", "before", "after"], rows) if rows else ""
    return f"<h1>{escape(duration(answer.shown.step_us))} <small>{escape(said)}</small></h1>{changes}"


def _timelines(answer: ReplayAnswer, as_measured: Replayed) -> list[str]:
    """Return the measured step above the changed one, or above its unchanged replay."""
    shown = answer.shown
    rows = picture_rows(as_measured, shown)
    until_us = max(as_measured.step_us, shown.step_us)
    below = "replayed" if answer.after is None else f"changed: {', '.join(applied.text for applied in answer.applied)}"
    pairs = (("measured", as_measured), (below, shown))
    return [
        f'<div class="scroll">{timeline(replay, rows, f"{name}, {duration(replay.step_us)}", until_us)}</div>'
        for name, replay in pairs
    ]


def _bars(answer: ReplayAnswer, as_measured: Replayed) -> list[str]:
    """Return a bar for every rank, as measured, as replayed and as changed, with the legend."""
    shown = [("measured", as_measured), ("replayed", answer.before)]
    if answer.after is not None:
        shown.append(("changed", answer.after))
    rows = [
        (f"rank {local.rank}, {name}", replay.parts[at].parts)
        for at, local in enumerate(answer.before.step.ranks)
        for name, replay in shown
    ][:MOST_BARS]
    names = shown_parts([part for _, replay in shown for part in replay.parts])
    marks = ticks(max(sum(parts.values()) for _, parts in rows) / 1e3)
    scale = (WIDTH - LEFT - RIGHT) / (marks[-1] * 1e3)
    height = len(rows) * (BAR + GAP)
    shapes = []
    for mark in marks:
        x = LEFT + mark * 1e3 * scale
        shapes.append(element("line", class_="grid", x1=x, y1=0, x2=x, y2=height))
        shapes.append(text(x, height + 15, f"{mark:,g}", text_anchor="middle"))
    shapes.append(text(LEFT + (WIDTH - LEFT - RIGHT) / 2, height + 34, "ms", text_anchor="middle"))
    for number, (label, parts) in enumerate(rows):
        y, x = number * (BAR + GAP) + GAP / 2, float(LEFT)
        shapes.append(text(LEFT - 8, y + BAR * 0.72, label, text_anchor="end"))
        for name in names:
            wide = parts[name] * scale
            title = f"{label}: {name} {parts[name] / 1e3:,.4g} ms"
            shapes.append(element("rect", x=x, y=y, width=wide, height=BAR, fill=COLOURS[name], title=title))
            x += wide
    entries = "".join(f'<li><i style="background:{COLOURS[name]}"></i>{escape(name)}</li>' for name in names)
    label = "time of every rank by part"
    chart = element("svg", "".join(shapes), viewBox=f"0 0 {WIDTH} {height + 44}", role="img", aria_label=label)
    return [f'<ul class="legend">{entries}</ul>', chart]


def _path(shown: Replayed) -> str:
    rows = [[share.operator, *path_cells(share, shown.step_us)] for share in shown.path[:LISTED]]
    return _table(["operator", *PATH_HEAD], rows)


def _operators(shown: Replayed) -> str:
    rows = [[share.operator, *operator_cells(share, shown.step_us)] for share in shown.operators[:LISTED]]
    return _table(["operator", *OPERATOR_HEAD], rows)


def _moves(answer: ReplayAnswer) -> str:
    rows = [
        [
            move.operator,
            move.kind,
            move.how,
            f"{move.before_us:,.1f}",
            f"{move.after_us:,.1f}",
            f"{move.change_us:+,.1f}",
        ]
        for move in answer.moves[:LISTED]
    ]
    head = ["operator", "kind", "", "before, µs", "after, µs", "change, µs"]
    return _table(head, rows) if rows else "<p>Nothing.</p>"


def _collectives(shown: Replayed) -> str:
    totals = collective_totals(shown.step, shown.replay.spans)
    if not totals:
        return ""
    return _section(
        "Collectives of a rank",
        _table(["name", *COLLECTIVE_HEAD], [[total.name, *collective_cells(total)] for total in totals]),
        "".join(f"<p>{escape(line)}</p>" for line in wait_lines(shown, LISTED)),
    )
