"""The health of a run as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from predictor.core.report.page.parts import section, table
from predictor.core.report.page.style import STYLE
from predictor.watch import chart
from predictor.watch.health import Finding, Health
from predictor.watch.series import Bucket
from predictor.watch.text import answer, facts, number_rows, part_rows, trust, why
from predictor.watch.words import alarms_first, extent, moment, plain, seconds, when

SHOWN = 20  # findings
LEGEND = (
    '<ul class="legend"><li><i style="background:var(--ink)"></i>mean of neighbouring steps</li>'
    '<li><i style="background:var(--ink);opacity:0.16"></i>smallest to largest</li>{band}'
    '<li><i style="background:#d55e00;opacity:0.4"></i>deviation</li>'
    '<li><i style="background:var(--soft);opacity:0.4"></i>deviation that healthy runs show</li></ul>'
)
BAND = '<li><i style="background:var(--accent);opacity:0.3"></i>90 % interval of the prediction</li>'


def _finding(number: int, finding: Finding) -> str:
    """Return a finding as an entry of a list."""
    change, first = finding.change, finding.explanations[0]
    usual = f"no alarm, as {finding.tolerated}" if finding.tolerated else "healthy runs show this"
    head = f"{when(change)}: {extent(change)}{f'; {usual}' if finding.is_expected else ''}."
    rows = [[f"{cause.belief:.0%}", cause.title, "; ".join(cause.evidence)] for cause in finding.explanations]
    told = [("To tell", first.distinguish if len(finding.explanations) > 1 else ""), ("To do", first.remedy)]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in told if words)
    causes = table(["belief", "cause", "evidence"], rows, wraps="evidence")
    return f"<h3>{number} · {escape(head)}</h3>{causes}<dl>{listed}</dl>"


def _steps_table(buckets: Sequence[Bucket]) -> str:
    """Return the numbers behind the chart, folded."""
    rows = [
        [f"{bucket.first_step:,} – {bucket.last_step:,}", f"{bucket.steps:,}"]
        + [f"{value:.4g}" for value in (bucket.mean_s, bucket.low_s, bucket.high_s)]
        for bucket in buckets
    ]
    numbers = table(["step numbers", "steps", "mean, s", "smallest, s", "largest, s"], rows)
    return f"<details><summary>The numbers</summary>{numbers}</details>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def page(
    health: Health, buckets: Sequence[Bucket], sources: Sequence[str], at: float, reload_s: float | None = None
) -> str:
    """Return the page.

    Args:
        health: of the run.
        buckets: its steps, as many as a chart shows.
        sources: path and format of each.
        at: now, in seconds since the epoch.
        reload_s: after which a browser reads it again; None: never.
    """
    head = answer(health)
    numbers, parts = number_rows(health), part_rows(health)
    known = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts(health).items())
    found = "".join(
        _finding(number, finding) for number, finding in enumerate(alarms_first(health.findings)[:SHOWN], 1)
    )
    more = len(health.findings) - SHOWN
    drawn = chart.steps_chart(health, buckets)
    band = "" if health.expected is None else BAND
    sections = [
        section("Steps", drawn, LEGEND.format(band=band), _steps_table(buckets)) if drawn else "",
        section("Findings, the costliest first", found, f"<p>And {more} more.</p>" if more > 0 else "")
        if found
        else "",
        section("Numbers", table(numbers[0], numbers[1:]) if len(numbers) > 1 else "", f"<dl>{known}</dl>"),
        section("Parts of a step", table(parts[0], parts[1:])) if parts else "",
        section("To know before trusting it", _list(health.notes)) if health.notes else "",
        section("Read", _list(sources)) if sources else "",
    ]
    reload = "" if reload_s is None else f'<meta http-equiv="refresh" content="{reload_s:.0f}">'
    step = "–" if health.median_s is None else seconds(health.median_s)
    return plain(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1">{reload}<title>{escape(f"{step} · {health.state}")}</title>'
        f"<style>{STYLE}{chart.STYLE}</style></head><body><main>"
        f"<h1>{escape(step)} <small>a step, {escape(moment(at))}</small></h1><p><strong>{escape(head)}</strong></p>"
        f"<p>{escape(trust(health))}</p><p>{escape(why(health))}</p>{''.join(sections)}</main></body></html>\n"
    )
