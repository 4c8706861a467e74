"""Plain-text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def columns_text(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return aligned columns: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (header, *lines)
    )


def number(value: float | None) -> str:
    """Return two decimals, or a dash for nothing."""
    return "-" if value is None else f"{value:.2f}"


def _dropped(column: dict[str, Any]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in column["dropped"].items())


def evaluation_text(document: dict[str, Any]) -> str:
    """Return an evaluation as text: one line per column, the reasons of dropped rows, and the means."""
    keys = ("mape", "median", "largest_mape", "coverage")
    header = ("column", "rows", "kept", "MAPE %", "median %", "largest 20 % %", "coverage %")
    lines = [
        (c["column"], str(c["rows"]), str(c["kept"]), *(number(c.get(key)) for key in keys))
        for c in document["columns"]
    ]
    for kind in ("operators", "collectives"):
        summary = document[kind]
        lines.append((f"mean of {summary['columns']} {kind}", "", "", *(number(summary[key]) for key in keys)))
    reasons = [f"{c['column']}: {_dropped(c)}" for c in document["columns"] if c["dropped"]]
    return "\n".join([columns_text(header, lines), "", "dropped:", *(reasons or ["nothing"])])


def held_out_text(document: dict[str, Any]) -> str:
    """Return held-out errors as text, the reference's beside ours where the document has them."""
    keys = (
        "mape", "physics_mape", "largest_mape", "unseen_topology_mape", "coverage", "untouched_coverage",
        "largest_coverage", "noise_floor",
    )  # fmt: skip
    header = (
        "column",
        "rows",
        "kept",
        "MAPE",
        "physics",
        "largest",
        "unseen",
        "cover",
        "untouched",
        "largest c.",
        "noise",
    )
    columns = [*document["operator_columns"], *document["collective_columns"]]
    lines = [(c["column"], str(c["rows"]), str(c["kept"]), *(number(c.get(key)) for key in keys)) for c in columns]
    for kind in ("operators", "collectives"):
        summary = document[kind]
        lines.append((f"mean of {summary['columns']} {kind}", "", "", *(number(summary.get(key)) for key in keys)))
        theirs = document.get("reference", {}).get(kind)
        if theirs is None:
            continue
        shown = [theirs["mape"], "", theirs["largest_mape"], theirs["unseen_topology_mape"], "", "", "", ""]
        lines.append(("  the reference", "", "", *shown))
    return columns_text(header, lines)


def transfer_text(document: dict[str, Any]) -> str:
    """Return how wrong transferred answers are as text: operators, collectives by links, and the constants of both."""
    header = ("predicted", "from -> to", "shapes", "MAPE %", "median %", "bias", "90 % |log|")
    keys = ("mape", "median", "bias", "log_error")
    operators = [
        (
            f"{e['regressor']} {e['direction']}",
            f"{e['from']} -> {e['to']}",
            str(e["shapes"]),
            *(number(e[k]) for k in keys),
        )
        for e in document["operator_columns"]
    ]
    collectives = [
        (f"{e['to']} {e['topology']}", f"{e['system']}: {e['from']}", str(e["shapes"]), *(number(e[k]) for k in keys))
        for e in document["collective_columns"]
    ]
    means = [
        (f"mean of {kind}", "", "", number(found["mape"]), number(found["median"]), "", number(found["log_error"]))
        for kind, found in document["mean"].items()
    ]
    constants = [f"{kind}: {found}" for kind, found in document["constants"].items()]
    return "\n".join([columns_text(header, [*operators, *means, *collectives]), "", *constants])


def few_rows_text(document: dict[str, Any]) -> str:
    """Return what a few rows are worth as text."""
    header = ("way", "from -> to", "rows", "mean MAPE %", "median MAPE %", "90 % |log|")
    lines = [
        (
            e["way"],
            f"{e['from']} -> {e['to']}",
            str(e["rows"]),
            *(number(e[k]) for k in ("mape", "median", "log_error")),
        )
        for e in document["entries"]
    ]
    return columns_text(header, lines)
