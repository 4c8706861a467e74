"""Measured rows that a fit dropped: why a published system lacks a regressor although it was measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.core.costs.folder import HELD_OUT, read_verified

# Reasons of training/fitting/gate.py.
NOISE = "in a column whose neighbouring sizes scatter by more than {limit}"
OUTLIER = "disagrees with its neighbours"
NOISY = (NOISE.partition("{")[0], OUTLIER)  # reasons that a quiet machine does not give


def all_dropped(document: Mapping[str, Any], regressor: str, precision: str) -> str:
    """Return that all rows of a regressor were dropped, and why; empty where they were not, or there were none.

    Args:
        document: content of ``held_out.json``.
        regressor: of an operator or a collective.
        precision: whose columns are meant where the system has several.
    """
    columns = [
        column
        for kind in ("operator_columns", "collective_columns")
        for column in document[kind]
        if column["regressor"] == regressor
        and (len(document["precisions"]) == 1 or str(column["column"]).endswith(f" {precision}"))
    ]
    rows = sum(column["rows"] for column in columns)
    if not rows or any(column["kept"] for column in columns):
        return ""
    reasons: Counter[str] = Counter()
    for column in columns:
        reasons.update(column["dropped"])
    noisy = sum(count for reason, count in reasons.items() if reason.startswith(NOISY))
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if not reasons:
        return f"{regressor} was measured, but its {rows} rows are too few to fit; measure more sizes"
    too_few = rows - sum(reasons.values())
    why += f", {too_few} left, too few to fit" if too_few else ""
    way_out = "measure it again on a quiet machine" if 2 * noisy >= rows else "see the card of the system"
    told = "noisy: " if 2 * noisy >= rows else ""
    return f"{regressor} was measured, but all {rows} rows were dropped: {told}{why}; {way_out}"


def why_missing(folder: Path, manifest: Mapping[str, str], regressor: str, precision: str) -> str:
    """Return why a published folder lacks a regressor that was measured; empty where nothing tells.

    Raises:
        PublishedError: the document of its held-out errors is damaged.
    """
    if HELD_OUT not in manifest:
        return ""
    document = json.loads(read_verified(folder, HELD_OUT, dict(manifest)))
    return all_dropped(document, regressor, precision) if "precisions" in document else ""
