"""Assemble the page: tables, figures, held-out errors and dropped rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from microbench.errors import MeasureError
from microbench.report.figures import Point, bus_bandwidths, parity, points_of, roofline
from microbench.table import Table, read_tables
from predictor.core.base.errors import PublishedError
from predictor.core.base.read_yaml import first_problem, read_keys
from predictor.core.costs.published import PublishedSystem, measured_precisions
from predictor.core.hardware.hardware import System

# Figures keep their light ground in the dark: their series have colours of their own, black among them.
STYLE = """:root{--ink:#111;--line:#ddd;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--line:#3a3f47;--paper:#17191c}}
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1150px;padding:0 1em;color:var(--ink);
background:var(--paper);-webkit-text-size-adjust:100%;text-size-adjust:100%}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:2px 10px;border-bottom:1px solid var(--line);text-align:left;
white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.scroll,figure{overflow-x:auto;max-width:100%}figure{display:inline-block;margin:4px 0;background:#fff}
svg{display:block}
.grid{stroke:#e3e3e3;fill:none}.tick{font-size:10px}.axis{font-size:11px}.title{font-size:12px;font-weight:600}
.middle{text-anchor:middle}.end{text-anchor:end}svg text{font-family:system-ui,sans-serif;fill:#111}
@media print{.scroll,figure{overflow:visible}}"""
UNSTATED = "–"
NUMBER = ' class="n"'
HELD_OUT = {
    "column": "what",
    "rows_scored": "rows",
    "mape": "mean error, %",
    "median": "median, %",
    "physics_mape": "physics alone, %",
    "largest_mape": "largest fifth, %",
    "coverage": "in the 90 % interval, %",
    "noise_floor": "noise, %",
}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}".removesuffix(".00")
    return UNSTATED if value is None else escape(str(value))


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table with numbers aligned to the right, in a box that scrolls on a narrow screen."""
    rows = list(rows)
    numbers = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(head))]
    names = zip(head, numbers, strict=True)
    lines = [
        "<tr>" + "".join(f"<th{NUMBER if is_number else ''}>{escape(name)}</th>" for name, is_number in names) + "</tr>"
    ]
    for row in rows:
        classes = (NUMBER if isinstance(value, int | float) else "" for value in row)
        cells = (f"<td{kind}>{_text(value)}</td>" for kind, value in zip(classes, row, strict=True))
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>" if len(lines) > 1 else "<p>None.</p>"


def read_system(results: Path) -> System:
    """Return the hardware in a results folder's system.yaml.

    Raises:
        MeasureError: it is missing or damaged.
    """
    path = results / "system.yaml"
    if not path.is_file():
        raise MeasureError(f"{path} does not exist; python -m microbench system writes it")
    try:
        return System.model_validate(read_keys(path, MeasureError).get("hardware"))
    except ValidationError as error:
        raise MeasureError(f"{path}: not a description of a system: {first_problem(error)}") from None


def _measured(tables: Sequence[Table]) -> str:
    rows = []
    for table in tables:
        own, last = table.provenance.identity, table.provenance.sessions[-1]
        counts = Counter(row.status.value for row in table.rows if not row.status.is_timed)
        failed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        noise = None if last.relative_spread is None else 100.0 * last.relative_spread
        rows.append((own.name, own.precision, own.worker, len(table.rows), failed, noise, last.host, last.commit[:12]))
    return html_table(
        ("what", "precision", "share or nodes x ranks", "rows", "not timed", "IQR, % of median", "host", "commit"), rows
    )


def _by_name(points: Sequence[Point]) -> dict[str, list[Point]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.operator.full_name, []).append(point)
    return dict(sorted(groups.items()))


def _parity(points: Sequence[Point], published: Path) -> list[str]:
    figures = []
    for precision in measured_precisions(published):
        system = PublishedSystem(published, precision)
        chosen = [point for point in points if point.precision == precision]
        figures += [parity(f"{name}, {precision}", some, system) for name, some in _by_name(chosen).items()]
    return figures


def _held_out(columns: Sequence[dict[str, Any]]) -> str:
    return html_table(tuple(HELD_OUT.values()), ([column.get(key) for key in HELD_OUT] for column in columns))


def _dropped(columns: Sequence[dict[str, Any]]) -> str:
    rows = [(c["column"], c["rows"], c["kept"], why, count) for c in columns for why, count in c["dropped"].items()]
    return html_table(("what", "rows", "kept", "dropped because it", "rows dropped"), rows)


def _read_held_out(published: Path) -> list[dict[str, Any]]:
    path = published / "held_out.json"
    try:
        document = json.loads(path.read_bytes())
        return [*document["operator_columns"], *document["collective_columns"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise PublishedError(f"{path}: {error}") from None


def page(results: Path, published: Path | None) -> str:
    """Return the page.

    Raises:
        MeasureError: a table or the description of the system is damaged or missing, or there are no tables.
        PublishedError: the published system is damaged.
    """
    operators, collectives = read_tables(results, "operator"), read_tables(results, "collective")
    if not operators and not collectives:
        raise MeasureError(f"{results}: no measurement tables; snakemake profile_all measures them")
    system = read_system(results)
    calls, messages = points_of(operators), points_of(collectives)
    curves = [bus_bandwidths(name, some) for name, some in _by_name(messages).items()]
    sections = [
        ("What was measured", _measured([*operators, *collectives])),
        ("Roofline", _figures([roofline(calls, system)])),
        ("Bus bandwidth, as nccl-tests defines it", _figures(curves)),
    ]
    if published is not None:
        columns = _read_held_out(published)
        sections += [
            ("Measured and predicted, on the rows that were fitted", _figures(_parity([*calls, *messages], published))),
            ("Errors on held-out rows", _held_out(columns)),
            ("What was dropped", _dropped(columns)),
        ]
    title = f"{system.name}: {system.gpu.name}"
    body = "\n".join(f"<h2>{escape(name)}</h2>\n{content}" for name, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _figures(figures: Sequence[str]) -> str:
    return "\n".join(f"<figure>{figure}</figure>" for figure in figures) or "<p>None.</p>"
