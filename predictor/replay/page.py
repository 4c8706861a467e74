"""A replayed step as one self-contained HTML page: two timelines on one axis, breakdown, changes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from predictor.core.base.quantities import duration
from predictor.core.report.page.charts import Bar, bars, legend
from predictor.core.report.page.parts import section, table
from predictor.core.report.page.style import STYLE
from predictor.replay.answer import ReplayAnswer, Replayed, measured
from predictor.replay.collectives import collective_totals
from predictor.replay.picture import COLOURS, picture_rows, timeline
from predictor.replay.text import (
    COLLECTIVE_HEAD,
    OPERATOR_HEAD,
    PATH_HEAD,
    backlog_words,
    bottleneck,
    changed_words,
    collective_cells,
    gap_words,
    is_steady,
    operator_cells,
    path_cells,
    shown_parts,
    wait_lines,
)

LISTED = 40
BAR_LABELS = 126  # pixels
MOST_BARS = 32


def page(answer: ReplayAnswer) -> str:
    """Return the page."""
    as_measured, shown = measured(answer.before.step), answer.shown
    first = answer.before.step.ranks[0]
    title = f"{first.label}: {duration(shown.step_us)}"
    sections = [
        _headline(answer),
        section("When", *_timelines(answer, as_measured)),
        section(
            "Where the step goes",
            *_bars(answer, as_measured),
            f"<p>{escape(bottleneck(answer))} {escape(gap_words(shown))}</p>",
        ),
        section("Critical path", _path(shown)),
        section("Operators of a rank", _operators(shown)),
        section("What moved on the critical path", _moves(answer)) if answer.after is not None else "",
        _collectives(shown),
        section("To know before trusting it", _listed([*answer.notes, *_change_notes(answer)])),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _listed(lines: Sequence[str]) -> str:
    return (
        f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
        if lines
        else "<p>Nothing beyond the above.</p>"
    )


def _change_notes(answer: ReplayAnswer) -> list[str]:
    return [f"{applied.text}: {note}" for applied in answer.applied for note in applied.touched.notes]


def _headline(answer: ReplayAnswer) -> str:
    replay = f"replayed unchanged {duration(answer.replay_us)}, {answer.error_words}"
    said = f"measured {duration(answer.measured_us)}; {replay}"
    if is_steady(answer):
        said += f"; in a run of many alike {duration(answer.before.step_us)}"
    if backlog_words(answer):
        said += f"; {backlog_words(answer)}"
    if answer.after is not None:
        said = f"{', '.join(changed_words(answer).split('   '))}; {said}"
    rows = [
        [
            applied.text,
            applied.touched.what,
            duration(applied.touched.before_us),
            duration(applied.touched.after_us),
        ]
        for applied in answer.applied
    ]
    changes = table(["change", "touched", "before", "after"], rows) if rows else ""
    return f"<h1>{escape(duration(answer.shown.step_us))} <small>{escape(said)}</small></h1>{changes}"


def _timelines(answer: ReplayAnswer, as_measured: Replayed) -> list[str]:
    """Return the measured step above the changed one, or above its unchanged replay."""
    shown = answer.shown
    rows = picture_rows(as_measured, shown)
    until_us = max(as_measured.replay.makespan_us, shown.replay.makespan_us)
    below = "replayed" if answer.after is None else f"changed: {', '.join(applied.text for applied in answer.applied)}"
    pairs = (("measured", as_measured, answer.measured_us), (below, shown, shown.step_us))
    return [
        f'<div class="scroll">{timeline(replay, rows, f"{name}, {duration(us)}", until_us)}</div>'
        for name, replay, us in pairs
    ]


def _bars(answer: ReplayAnswer, as_measured: Replayed) -> list[str]:
    """Return a bar for every rank, as measured, as replayed and as changed, with the legend."""
    shown = [("measured", as_measured), ("replayed", answer.before)]
    if answer.after is not None:
        shown.append(("changed", answer.after))
    names = shown_parts([part for _, replay in shown for part in replay.parts])
    rows = [
        Bar(f"rank {local.rank}, {name}", {part: replay.parts[at].parts[part] / 1e3 for part in names})
        for at, local in enumerate(answer.before.step.ranks)
        for name, replay in shown
    ][:MOST_BARS]
    chart = bars(rows, "ms", "time of every rank by part", colours=COLOURS, left=BAR_LABELS)
    return [legend(rows, COLOURS), chart]


def _path(shown: Replayed) -> str:
    rows = [[share.operator, *path_cells(share, shown.step_us)] for share in shown.path[:LISTED]]
    return table(["operator", *PATH_HEAD], rows)


def _operators(shown: Replayed) -> str:
    rows = [[share.operator, *operator_cells(share, shown.step_us)] for share in shown.operators[:LISTED]]
    return table(["operator", *OPERATOR_HEAD], rows)


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
    return table(head, rows) if rows else "<p>Nothing.</p>"


def _collectives(shown: Replayed) -> str:
    totals = collective_totals(shown.step, shown.replay.spans)
    if not totals:
        return ""
    return section(
        "Collectives of a rank",
        table(["name", *COLLECTIVE_HEAD], [[total.name, *collective_cells(total)] for total in totals]),
        "".join(f"<p>{escape(line)}</p>" for line in wait_lines(shown, LISTED)),
    )
