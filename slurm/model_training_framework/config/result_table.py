"""Outcomes of a grid's experiments, as a table for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from model_training_framework.config.grid_experiment import GridExperiment
from model_training_framework.utils.tables import aligned

NAME, STATE, JOB = "experiment", "state", "job"
LONGEST_VALUE = 32
NAMED = 3  # experiments that a reason names; --json has all


def table(experiments: Sequence[GridExperiment]) -> str:
    """Return a row for every experiment, what all have in common, every reason once, and the count by state."""
    if not experiments:
        return "no experiments"
    keys = list(dict.fromkeys(key for experiment in experiments for key in experiment.differs))
    titles = _titles(keys)
    forecasts = [experiment.forecast.cells() if experiment.forecast else {} for experiment in experiments]
    predicted = list(dict.fromkeys(title for cells in forecasts for title in cells))
    common = _common(forecasts)
    rows = []
    for experiment, cells in zip(experiments, forecasts, strict=True):
        differs = {titles[key]: _value(value) for key, value in experiment.differs.items()}
        own = {title: cell for title, cell in cells.items() if title not in common}
        rows.append({NAME: experiment.name, **differs, **_state(experiment), **own})
    left = (NAME, *titles.values(), STATE, JOB)
    if len(rows) == 1:
        width = max(map(len, (*left, *predicted))) + 2
        return "\n".join(
            [*(f"{title:<{width}}{cell}" for title, cell in rows[0].items() if cell), *_reasons(experiments)]
        )
    lines = aligned(rows, (*left, *predicted), right=predicted)
    if common:
        lines.append(f"all: {'; '.join(f'{title} {cell}' for title, cell in common.items())}")
    counts = Counter(str(experiment.state) for experiment in experiments)
    total = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))
    return "\n".join([*lines, *_reasons(experiments), total])


def _titles(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest end of every dotted key that no other key and no other column has."""
    titles = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]
        taken = {NAME, STATE, JOB} | {
            ".".join(other.split(".")[-count:]) for other in keys if other != key for count in range(1, len(other))
        }
        titles[key] = next((end for end in ends if end not in taken), key)
    return titles


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list | bool | None) else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _state(experiment: GridExperiment) -> dict[str, str]:
    earlier = "" if experiment.is_new else ", earlier"
    return {STATE: f"{experiment.state}{earlier}", JOB: experiment.job_id or ""}


def _common(forecasts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the cells that all of several rows share."""
    if len(forecasts) < 2:
        return {}
    first, *others = forecasts
    return {title: cell for title, cell in first.items() if cell and all(row.get(title) == cell for row in others)}


def _reasons(experiments: Sequence[GridExperiment]) -> list[str]:
    """Return every reason once, with the experiments that it concerns."""
    concerned: dict[str, list[str]] = {}
    for experiment in experiments:
        if experiment.reason:
            concerned.setdefault(experiment.reason, []).append(experiment.name)
    return [f"{_names(names, len(experiments))}: {reason}" for reason, names in concerned.items()]


def _names(names: Sequence[str], total: int) -> str:
    if len(names) == total > 1:
        return f"all {total:,}"
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
