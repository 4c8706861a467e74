"""The card of a published system, in Markdown: origin of the measurements, dropped rows, held-out errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fitting.print_tables import markdown, number
from fitting.systems import SystemSource
from fitting.tables import operators_of
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.links import RING
from predictor.core.costs.operator import KERNEL_MARK, Direction
from predictor.core.costs.regressors import RegressorFile
from predictor.core.costs.transfer_errors import transfer_errors
from predictor.core.hardware.hardware import System

INTRODUCTION = """\
Fitted regressors, physics × residual, with 90 % intervals. No measured row is stored here. All errors are percent of
the measured time on rows that the fit did not see: *MAPE* and *median* from five folds grouped by kernel shape,
*largest* from holding out the largest 20 % of rows by work (of all tables of a regressor; of each table of a
collective), *physics* without the residual. *Coverage* is the share of rows in their 90 % interval, calibrated on the
other folds, and for the largest rows on smaller rows only. *Noise* is the distance of a row from the median of the
other rows of its shape, the least error possible. *Unseen topology*, between nodes only, is the error of physics
fitted to all other topologies.
"""
GATE = "Rows that the gate drops before a fit and before a held-out error; its rules: docs/adr/0003-gate.md."


COLUMNS = {
    "MAPE": "mape", "median": "median", "physics": "physics_mape", "largest": "largest_mape",
    "coverage": "coverage", "coverage, largest": "largest_coverage", "noise": "noise_floor",
}  # fmt: skip


def _numbers(entry: dict[str, Any], keys: Iterable[str]) -> list[str]:
    return [number(entry.get(key), "–") for key in keys]


def _table(columns: Sequence[dict[str, Any]], more: dict[str, str]) -> list[str]:
    shown = COLUMNS | more
    lines = [[c["column"], c["regressor"], c["rows"], c["kept"], *_numbers(c, shown.values())] for c in columns]
    return markdown(["column", "regressor", "rows", "kept", *shown], lines, words=2)


def _dropped(columns: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"| {column['column']} | {count} of {column['rows']} | {reason} |"
        for column in columns
        for reason, count in column["dropped"].items()
    ]
    return [GATE, "", "| column | rows | reason |", "|---|---:|---|", *lines] if lines else [GATE, "", "None."]


def _equal_times(columns: Sequence[dict[str, Any]]) -> list[str]:
    """Say why an imported residual addition keeps its rows although both directions have the same time."""
    if not any(column["column"].startswith("res_add ") for column in columns):
        return []
    return ["", "`res_add` has the same time in both directions of every row and is kept: both sum two tensors."]


def _host(system: System) -> list[str]:
    lines = [f"- `{name}`: {quantity.value} – {quantity.source}" for name, quantity in system.host.items()]
    return lines or ["Nothing."]


def _summary(document: dict[str, Any]) -> list[str]:
    shown = {name: key for name, key in COLUMNS.items() if name not in ("median", "noise")}
    kinds = ("operators", "collectives")
    lines = [[kind, document[kind]["columns"], *_numbers(document[kind], shown.values())] for kind in kinds]
    return markdown(["", "columns", *shown], lines, words=1)


def _not_measured(system: System, files: Sequence[RegressorFile]) -> list[str]:
    """Return the collectives that are timed by their bytes over links, and the donors of this system."""
    published = {file.name for file in files}
    missing = [name for name in COLLECTIVES if name not in published]
    donors = system.transfer
    if not missing or (donors is None and RING not in published):
        return ["Nothing."]
    measured = f"{donors.intra_node} inside a node, {donors.inter_node} between nodes" if donors else "of this system"
    errors = transfer_errors().collectives
    links = (
        f"- {', '.join(missing)}: analytic, the time of their bytes over the links at the efficiency of measured "
        f"collectives ({measured}); interval ±{100 * errors['alike']:.0f} % (logarithmic), all_to_all "
        f"±{100 * errors['unlike']:.0f} %"
    )
    if donors is None:
        return [links]
    return [
        links,
        f"- operators without a table: analytic, transferred from {donors.operators}, scaled by the ratio of the peaks",
    ]


def _backward_products(system: System, files: Sequence[RegressorFile]) -> list[str]:
    """Say where the backward pass of products is timed by their forward regressor, alone or as one of two bounds."""
    rule = "its two products by the forward regressor: docs/adr/0025-backward-products.md"
    lines = []
    for file in files:
        if Direction.FORWARD not in file.directions or operators_of(file.name)[0].gradient_products is None:
            continue
        if Direction.BACKWARD not in file.directions:
            lines.append(f"- {file.name} backward {file.precision}: {rule}.")
        elif system.gradients == "constant":
            lines.append(
                f"- {file.name} backward {file.precision}: its table was measured with constant gradients, so steps "
                f"take the mean of it and of {rule}. The errors above are the table's."
            )
    return ["", "## Backward passes of products", *lines] if lines else []


def _attention_kernels(system: System, files: Sequence[RegressorFile]) -> list[str]:
    """Say which implementations of attention answer for what a run names, where there are several."""
    named = [file for file in files if KERNEL_MARK in file.name]
    if not named:
        return []
    lines = [f"- {system.attention_kernel or 'not recorded'}: where a run names none, or this one."]
    for kernel in sorted({file.name.partition(KERNEL_MARK)[2] for file in named}):
        measured = ", ".join(
            f"{file.name} {file.precision}" for file in named if file.name.endswith(f"{KERNEL_MARK}{kernel}")
        )
        lines.append(f"- {kernel}: where training.attention_kernel names it, by {measured}, without a ratio.")
    return ["", "## Kernels of attention", *lines]


def card(
    source: SystemSource,
    system: System,
    document: dict[str, Any],
    files: Sequence[RegressorFile] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the card's text; ``notes`` name tables that are not used, or used for another precision."""
    analytic = [
        f"- {entry['regressor']} {' '.join(entry[key] for key in ('direction', 'precision') if key in entry)}: "
        f"{entry['why']}; interval {entry['interval_percent'][0]:+.0f} to {entry['interval_percent'][1]:+.0f} % "
        "(logarithmic)"
        for entry in document["analytic"]
    ]
    columns = [*document["operator_columns"], *document["collective_columns"]]
    lines = [
        f"# {system.name}: {system.gpu.name}, {', '.join(document['precisions'])}",
        "",
        INTRODUCTION,
        "## Measurements",
        *source.provenance.lines(),
        "",
        "## Summary",
        *_summary(document),
        "",
        "## Operators",
        *_table(document["operator_columns"], {}),
        "",
        "## Collectives",
        *_table(document["collective_columns"], {"unseen topology": "unseen_topology_mape"}),
        "",
        "## Dropped rows",
        *_dropped(columns),
        *_equal_times(columns),
        "",
        *(
            ["## Tables not used, or used for another precision", *(f"- {note}." for note in notes), ""]
            if notes
            else []
        ),
        "## Analytic: no usable row",
        *(analytic or ["Nothing."]),
        *_backward_products(system, files),
        *_attention_kernels(system, files),
        "",
        "## Not measured: timed by the links",
        *_not_measured(system, files),
        "",
        "## Host",
        *_host(system),
    ]
    return "\n".join(lines) + "\n"
