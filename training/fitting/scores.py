"""Held-out errors of a regressor per column, for the card."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fitting.heldout import HeldOut, Untouched
from fitting.samples import Samples

Vector = NDArray[np.float64]


class Score(BaseModel):
    """Held-out errors of one column, in percent of the measured time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows_scored: int = Field(description="rows kept")
    mape: float = Field(description="mean absolute error, five folds grouped by shape")
    median: float = Field(description="median of the same")
    physics_mape: float = Field(description="the same from physics alone")
    largest_mape: float | None = Field(
        description="mean absolute error on the largest 20 % by work, none of them fitted"
    )
    coverage: float = Field(description="percent of rows inside their 90 % interval, calibrated on other folds")
    untouched_coverage: float | None = Field(
        description="the same on a fifth of the shapes, used neither to fit nor to calibrate"
    )
    largest_coverage: float | None = Field(description="the same on the largest 20 %, calibrated on smaller rows only")
    unseen_topology_mape: float | None = Field(description="mean absolute error of a fit to all other topologies")
    noise_floor: float | None = Field(description="mean gap between a row and the median of the others of its shape")


def percent(value: float) -> float:
    """Return a fraction as percent with two decimals."""
    return round(100.0 * float(value), 2)


def relative_error(predicted: Vector, measured: Vector) -> Vector:
    """Return |predicted / measured − 1|."""
    return np.asarray(np.abs(predicted / measured - 1.0))


def noise_floor(us: Vector, group: NDArray[np.int64]) -> float | None:
    """Return the mean gap between a row and the median of the other rows of its shape; None if no shape repeats."""
    order = np.argsort(group, kind="stable")
    parts = np.split(us[order], np.flatnonzero(np.diff(group[order])) + 1)
    gaps = [
        abs(float(np.median(np.delete(part, i))) / part[i] - 1.0)
        for part in parts
        if len(part) > 1
        for i in range(len(part))
    ]
    return percent(float(np.mean(gaps))) if gaps else None


def score(
    samples: Samples, held_out: HeldOut, columns: Sequence[str], untouched: Untouched | None = None
) -> dict[str, Score]:
    """Return the score of every column; ``untouched`` if that split was run too."""
    chosen, in_interval = untouched or (np.zeros(len(samples), dtype=bool), np.zeros(len(samples), dtype=bool))
    error = relative_error(held_out.us, samples.us)
    physics = relative_error(held_out.physics_us, samples.us)
    largest_error = relative_error(held_out.largest_us, samples.us[held_out.largest])
    result = {}
    for number, name in enumerate(columns):
        rows = samples.table == number
        largest = rows[held_out.largest]
        known = chosen[rows]
        unseen = held_out.unseen_topology_us[rows] if len(held_out.unseen_topology_us) else np.full(1, np.nan)
        result[name] = Score(
            rows_scored=int(rows.sum()),
            mape=percent(error[rows].mean()),
            median=percent(float(np.median(error[rows]))),
            physics_mape=percent(physics[rows].mean()),
            largest_mape=percent(largest_error[largest].mean()) if largest.any() else None,
            coverage=percent(held_out.in_interval[rows].mean()),
            untouched_coverage=percent(in_interval[rows][known].mean()) if known.any() else None,
            largest_coverage=percent(held_out.largest_in_interval[largest].mean()) if largest.any() else None,
            unseen_topology_mape=(
                None if np.isnan(unseen).any() else percent(relative_error(unseen, samples.us[rows]).mean())
            ),
            noise_floor=noise_floor(samples.us[rows], samples.group[rows]),
        )
    return result
