"""Tables as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.core.base.text_table import text_table


def markdown(header: Sequence[str], lines: Sequence[Sequence[object]], words: int) -> list[str]:
    """Return the lines of a Markdown table; columns from the ``words``-th on are numbers, to the right."""
    rule = "|---" * words + "|---:" * (len(header) - words) + "|"
    first, *rest = ("|" + "".join(f" {cell} |" if cell != "" else " |" for cell in line) for line in (header, *lines))
    return [first, rule, *rest]


def number(value: float | None, dash: str = "-") -> str:
    """Return two decimals, or a dash for nothing."""
    return dash if value is None else f"{value:.2f}"


def _numbers(entry: dict[str, Any], keys: Sequence[str]) -> list[str]:
    return [number(entry.get(key)) for key in keys]


def _dropped(column: dict[str, Any]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in column["dropped"].items())


def evaluation_text(document: dict[str, Any]) -> str:
    """Return an evaluation as text: one line per column, the reasons of dropped rows, and the means."""
    keys = ("mape", "median", "largest_mape", "coverage")
    header = ("column", "rows", "kept", "MAPE %", "median %", "largest 20 % %", "coverage %")
    lines = [(c["column"], str(c["rows"]), str(c["kept"]), *_numbers(c, keys)) for c in document["columns"]]
    for kind in ("operators", "collectives"):
        summary = document[kind]
        lines.append((f"mean of {summary['columns']} {kind}", "", "", *_numbers(summary, keys)))
    reasons = [f"{c['column']}: {_dropped(c)}" for c in document["columns"] if c["dropped"]]
    return "\n".join([*text_table([header, *lines]), "", "dropped:", *(reasons or ["nothing"])])


HELD_OUT_COLUMNS = {
    "MAPE": "mape", "physics": "physics_mape", "largest": "largest_mape", "unseen": "unseen_topology_mape",
    "cover": "coverage", "untouched": "untouched_coverage", "largest c.": "largest_coverage", "noise": "noise_floor",
}  # fmt: skip


def held_out_text(document: dict[str, Any]) -> str:
    """Return held-out errors as text, the reference's beside ours where the document has them."""
    header = ("column", "rows", "kept", *HELD_OUT_COLUMNS)
    keys = tuple(HELD_OUT_COLUMNS.values())
    columns = [*document["operator_columns"], *document["collective_columns"]]
    lines = [(c["column"], str(c["rows"]), str(c["kept"]), *_numbers(c, keys)) for c in columns]
    for kind in ("operators", "collectives"):
        summary, theirs = document[kind], document.get("reference", {}).get(kind)
        lines.append((f"mean of {summary['columns']} {kind}", "", "", *_numbers(summary, keys)))
        if theirs is not None:
            lines.append(("  the reference", "", "", *(theirs.get(key, "") for key in keys)))
    return "\n".join(text_table([header, *lines]))


def transfer_text(document: dict[str, Any]) -> str:
    """Return the errors of transfers as text: of operators, of collectives by links, and the constants of both."""
    header = ("predicted", "from -> to", "shapes", "MAPE %", "median %", "bias", "90 % |log|")
    keys = ("mape", "median", "bias", "log_error")
    lines = [
        (f"{e['regressor']} {e['direction']}", f"{e['from']} -> {e['to']}", str(e["shapes"]), *_numbers(e, keys))
        for e in document["operator_columns"]
    ]
    lines += [(f"mean of {kind}", "", "", *_numbers(e, keys)) for kind, e in document["mean"].items()]
    lines += [
        (f"{e['to']} {e['topology']}", f"{e['system']}: {e['from']}", str(e["shapes"]), *_numbers(e, keys))
        for e in document["collective_columns"]
    ]
    constants = [f"{kind}: {values}" for kind, values in document["constants"].items()]
    return "\n".join([*text_table([header, *lines]), "", *constants])


def few_rows_text(document: dict[str, Any]) -> str:
    """Return the errors of methods that use a few rows as text."""
    header = ("method", "from -> to", "rows", "mean MAPE %", "median MAPE %", "90 % |log|")
    lines = [
        (e["way"], f"{e['from']} -> {e['to']}", str(e["rows"]), *_numbers(e, ("mape", "median", "log_error")))
        for e in document["entries"]
    ]
    return "\n".join(text_table([header, *lines]))
