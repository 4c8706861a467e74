"""Compare methods to use a few rows of a new GPU: fit them, transfer a donor's regressor, or scale that to the rows.

One measured system plays the new GPU, another the donor. Every kernel shape is one row; a few are drawn at random,
several times, and all methods are compared on the same other shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fitting.intervals import COVERAGE
from fitting.regress import fit
from fitting.samples import Samples, to_samples
from fitting.tables import Row, operators_of, shape_times
from fitting.transfer_error import Transferred, measured_systems, transfers

FEW_ROWS_FORMAT = "estimate-train-time/few-rows/1"
COUNTS = (25, 50)
SEEDS = 3
JUDGED = 400
FEWEST_SHAPES = 80
Vector = NDArray[np.float64]


def distinct(rows: Sequence[Row], limit: int = 3000) -> list[Row]:
    """Return one row per shape with its median time, picked evenly if there are more than ``limit``."""
    first = {(row.operator, row.shape): row for row in reversed(rows)}
    medians = [replace(first[key], us=us) for key, us in shape_times(rows).items()]
    return medians[:: -(-len(medians) // limit)]


def methods(
    donor_us: Vector, samples: Samples, drawn: NDArray[np.int64], judged: NDArray[np.int64]
) -> dict[str, Vector]:
    """Return the answers of each method to the judged rows, given the drawn rows."""
    few, rest = (samples.take(np.isin(np.arange(len(samples)), chosen)) for chosen in (drawn, judged))
    drawn, judged = np.sort(drawn), np.sort(judged)
    fitted = fit(few)
    level = float(np.exp(np.median(np.log(few.us / donor_us[drawn]))))
    return {
        "own fit": fitted.us(rest),
        "own physics alone": fitted.without_residual(few).us(rest),
        "transfer": donor_us[judged],
        "transfer, scaled to the rows": donor_us[judged] * level,
    }


def log_errors(transferred: Transferred) -> Iterator[tuple[str, int, Vector]]:
    """Yield the method, the number of rows, and the log errors on the judged rows, for every count and seed."""
    few = distinct(transferred.rows)
    members = [operator.name for operator in operators_of(transferred.operator.regressor_name)]
    samples = to_samples(few, int(transferred.target.hardware.gpu.num_multiprocessors.value), members)
    answer = transferred.regressor.answer
    donor_us = np.array([answer(row.operator, transferred.direction, row.shape).us for row in few])
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(few))
        judged = np.sort(order[max(COUNTS) : max(COUNTS) + JUDGED])
        for count in COUNTS:
            for method, us in methods(donor_us, samples, order[:count], judged).items():
                yield method, count, np.log(samples.us[judged] / us)


def few_rows(folders: Sequence[Path], measurements: Path) -> dict[str, Any]:
    """Return the mean errors of every method over regressors, directions and draws; raises as ``measured_systems``."""
    systems, rows = measured_systems(folders, measurements)
    errors: dict[tuple[str, str, int, str], list[tuple[float, float]]] = {}
    for transferred in transfers(systems, rows, FEWEST_SHAPES):
        for method, count, log in log_errors(transferred):
            key = (transferred.donor.name, transferred.target.name, count, method)
            mape = 100.0 * float(np.abs(np.exp(-log) - 1.0).mean())
            errors.setdefault(key, []).append((mape, float(np.quantile(np.abs(log), COVERAGE))))
    entries = [
        {
            "from": donor,
            "to": target,
            "rows": count,
            "way": method,
            "mape": round(mean(mape for mape, _ in pairs), 1),
            "median": round(median(mape for mape, _ in pairs), 1),
            "log_error": round(mean(error for _, error in pairs), 2),
        }
        for (donor, target, count, method), pairs in sorted(errors.items(), key=lambda item: item[0][:3])
    ]
    return {"format": FEW_ROWS_FORMAT, "seeds": SEEDS, "judged": JUDGED, "entries": entries}
