"""Tables of the report: groups of ordinary runs and of benchmarks apart, totals, frameworks, sources, layouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.accuracy.groups import Figures, Judged, Row, figures, read_before
from tests.accuracy.layouts import layout_tables
from tests.accuracy.left_out_sources import AS_PUBLISHED, Without, coverage, source_table
from tests.accuracy.tables import ABSENT, Table, percent, signed

FIGURES = ("rows", "mean abs. %", "mean %", "median %", "inside %", "above %", "high/low", "memory %", "unfit")
BEFORE = ("before: abs. %", "mean %", "inside %", "high/low")
# Name of the table, whether its runs are ordinary, its title.
KINDS = (
    ("ordinary", True, "Ordinary runs: users' own, verification of untuned recipes, test suites"),
    ("benchmarks", False, "Benchmarks: vendors' tuned runs and controlled sweeps"),
)


def _cells(of: Figures) -> list[str]:
    return [
        str(of.rows),
        percent(of.mean_absolute_percent, 1),
        signed(of.mean_percent),
        signed(of.median_percent),
        percent(of.inside_percent),
        percent(of.above_percent),
        f"{of.high_over_low:.2f}",
        percent(of.memory_percent, 1),
        str(of.unfit or ""),
    ]


def _before_cells(of: Figures | None) -> list[str]:
    if of is None:
        return [ABSENT] * len(BEFORE)
    shown = percent(of.mean_absolute_percent, 1), signed(of.mean_percent), percent(of.inside_percent)
    return [*shown, f"{of.high_over_low:.2f}"]


def group_tables(judged: Judged) -> Iterator[Table]:
    """Yield the groups of each kind of run with their total, every row of which counts once."""
    of, before = read_before()
    for name, ordinary, title in KINDS:
        groups = {key: rows for key, rows in judged.groups.items() if rows[0].compared.step.ordinary is ordinary}
        lines = [[key, *_cells(figures(rows)), *_before_cells(before.get(key))] for key, rows in groups.items()]
        if own := [row for row in judged.rows if row.compared.step.ordinary is ordinary]:
            lines.append(["all, each row once", *_cells(figures(own)), *_before_cells(None)])
        yield Table(name, f"{title} (before: {of})", ("group", *FIGURES, *BEFORE), lines)


def framework_table(rows: Sequence[Row]) -> Table:
    """Return a line per framework and kind of run."""
    by: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        step = row.compared.step
        by[f"{step.config['training']['framework']}, {'ordinary' if step.ordinary else 'benchmarks'}"].append(row)
    lines = [[name, *_cells(figures(own))] for name, own in sorted(by.items())]
    return Table("frameworks", "By framework", ("framework", *FIGURES), lines)


def tables(judged: Judged, without: Without = AS_PUBLISHED) -> Iterator[Table]:
    """Yield every table of docs/accuracy.md on whole steps.

    Args:
        judged: the rows.
        without: predicts the rows of a publication without its evidence.
    """
    yield from group_tables(judged)
    yield framework_table(judged.rows)
    yield source_table(coverage(judged.rows, without), left_out=without is not AS_PUBLISHED)
    yield from layout_tables(judged.rows)


def left_out_lines(judged: Judged, longest: int = 110) -> Iterator[str]:
    """Yield how many rows were compared, and the others by reason."""
    compared = judged.num_rows - sum(judged.unexpressed.values()) - sum(judged.refused.values())
    yield f"{judged.num_rows} rows; {compared} compared, or slower batches of a compared job"
    reasons: Mapping[str, Mapping[str, int]] = {"not expressed": judged.unexpressed, "refused": judged.refused}
    for kind, counted in reasons.items():
        for reason, count in sorted(counted.items(), key=lambda each: -each[1]):
            yield f"{kind}, {count} rows: {reason[:longest]}"
