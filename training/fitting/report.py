"""Held-out errors of a system as one document: stored in ``held_out.json`` and printed on the card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fitting.derive import Derived
from fitting.pipeline import Fit
from predictor.core.costs.collectives import COLLECTIVES

HELD_OUT_FORMAT = "estimate-train-time/held-out/1"
# Held-out errors of the reference on the same tables: random forests and boosted trees on raw shapes. On unseen
# topologies (8 x 1 and 2 x 4 all-reduce) its error was 15 % and 61 %.
REFERENCE = {
    "operators": {"mape": "6.98", "largest_mape": "35.0", "unseen_topology_mape": ""},
    "collectives": {"mape": "2.13", "largest_mape": "10.3", "unseen_topology_mape": "15, 61"},
}


class Fitted(NamedTuple):
    """Fitted and derived regressors of a precision."""

    precision: str
    fits: Sequence[Fit]
    derived: Sequence[Derived]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, with two decimals; None if there are none."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 2) if known else None


def _pooled(columns: Sequence[dict[str, Any]], key: str) -> float | None:
    """Return the mean over rows of a column-wise percentage."""
    known = [(c[key], c["rows_scored"]) for c in columns if c.get(key) is not None]
    rows = sum(count for _, count in known)
    return round(sum(value * count for value, count in known) / rows, 2) if rows else None


def summary(columns: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the means over columns; coverage over rows."""
    judged = [column for column in columns if column.get("mape") is not None]
    return {
        "columns": len(judged),
        **{key: mean(c[key] for c in judged) for key in ("mape", "physics_mape", "largest_mape")},
        **{key: _pooled(judged, key) for key in ("coverage", "untouched_coverage", "largest_coverage")},
        "unseen_topology_mape": mean(c["unseen_topology_mape"] for c in judged),
    }


def _columns(fit: Fit, precision: str) -> list[dict[str, Any]]:
    """Return an entry per column, its name followed by ``precision``, which is empty for a single precision."""
    result = []
    for name, count in fit.columns.items():
        entry = {"column": f"{name} {precision}".rstrip(), "regressor": fit.regressor, "direction": fit.direction.value}
        entry |= count.to_dict() if fit.model else count.to_dict() | {"kept": 0}
        if name in fit.scores:
            entry |= fit.scores[name].model_dump()
        result.append(entry)
    return result


def _analytic(derived: Derived, precision: str) -> dict[str, Any]:
    low, high = derived.model.interval.inside
    return {
        "regressor": derived.regressor,
        "direction": derived.direction.value,
        **({"precision": precision} if precision else {}),
        "why": derived.why,
        "interval_percent": [round(100 * low, 1), round(100 * high, 1)],
    }


def held_out_document(name: str, parts: Sequence[Fitted]) -> dict[str, Any]:
    """Return all numbers of a system; with several precisions, column names have theirs."""
    suffixes = [part.precision if len(parts) > 1 else "" for part in parts]
    columns = [
        column
        for part, precision in zip(parts, suffixes, strict=True)
        for f in part.fits
        for column in _columns(f, precision)
    ]
    collectives = [c for c in columns if c["regressor"] in COLLECTIVES]
    operators = [c for c in columns if c["regressor"] not in COLLECTIVES]
    return {
        "format": HELD_OUT_FORMAT,
        "system": name,
        "precisions": [part.precision for part in parts],
        "unit": "percent of the measured time",
        "operators": summary(operators),
        "collectives": summary(collectives),
        "operator_columns": operators,
        "collective_columns": collectives,
        "analytic": [
            _analytic(d, precision) for part, precision in zip(parts, suffixes, strict=True) for d in part.derived
        ],
    }
