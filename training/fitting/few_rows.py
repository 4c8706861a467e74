"""Compare ways to use a few rows of a new GPU: fit to them, use a donor, or scale the donor's regressor to them.

One measured system plays the new GPU, another one the donor. Rows are one per kernel shape, drawn at random several
times over, and every way is judged on the same other shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fitting.intervals import COVERAGE
from fitting.pipeline import operators_of
from fitting.regress import fit
from fitting.samples import Samples, to_samples
from fitting.tables import Row
from fitting.transfer_error import PRECISION, measured_rows, own_regressor, shape_times
from predictor.costs.collectives import COLLECTIVES
from predictor.costs.operator import Direction
from predictor.costs.published import PublishedSystem, with_hardware
from predictor.costs.regressors import Regressor

FEW_ROWS_FORMAT = "estimate-train-time/few-rows/1"
COUNTS = (25, 50)
SEEDS = 3
JUDGED = 400
FEWEST_SHAPES = 80
Vector = NDArray[np.float64]


def distinct(rows: Sequence[Row], limit: int = 3000) -> list[Row]:
    """Return one row per shape with its median time, picked evenly if there are more than ``limit``."""
    first = {(row.operator, row.shape): row for row in reversed(rows)}
    found = [replace(first[key], us=us) for key, us in shape_times(rows).items()]
    return found[:: -(-len(found) // limit)]


def ways(lent_us: Vector, samples: Samples, drawn: NDArray[np.int64], judged: NDArray[np.int64]) -> dict[str, Vector]:
    """Return the answers of each method to the judged rows, given the drawn rows."""
    few, rest = (samples.take(np.isin(np.arange(len(samples)), chosen)) for chosen in (drawn, judged))
    drawn, judged = np.sort(drawn), np.sort(judged)
    fitted = fit(few)
    level = float(np.exp(np.median(np.log(few.us / lent_us[drawn]))))
    return {
        "own fit": fitted.us(rest),
        "own physics alone": fitted.without_residual(few).us(rest),
        "lent": lent_us[judged],
        "lent, at their level": lent_us[judged] * level,
    }


def columns(lent: Regressor, direction: Direction, rows: Sequence[Row], sms: int) -> Iterator[tuple[str, int, Vector]]:
    """Yield the way, the number of rows, and the log errors on the judged rows, for every count and seed."""
    few = distinct(rows)
    members = [operator.name for operator in operators_of(few[0].operator.regressor_name)]
    samples = to_samples(few, sms, members)
    lent_us = np.array([lent.answer(row.operator, direction, row.shape).us for row in few])
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(few))
        judged = np.sort(order[max(COUNTS) : max(COUNTS) + JUDGED])
        for count in COUNTS:
            for way, us in ways(lent_us, samples, order[:count], judged).items():
                yield way, count, np.log(samples.us[judged] / us)


def few_rows(folders: Sequence[Path], measurements: Path) -> dict[str, Any]:
    """Return the errors of every way, averaged over regressors, directions and draws.

    Raises:
        FileNotFoundError: a folder is missing.
        PublishedError: a system is damaged.
        TableError: a table cannot be read, or there is none of a system's GPU.
    """
    systems = [PublishedSystem(folder, PRECISION) for folder in folders]
    rows = {system.name: measured_rows(system, measurements) for system in systems}
    entries: list[dict[str, Any]] = []
    for donor, target in permutations(systems, 2):
        moved = with_hardware(donor, target.hardware)
        errors: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for (name, direction), kept in rows[target.name].items():
            operator = operators_of(name)[0]
            unknown = name in COLLECTIVES or own_regressor(donor, operator, direction) is None
            if unknown or len(shape_times(kept)) < FEWEST_SHAPES:
                continue
            sms = int(target.hardware.gpu.num_multiprocessors.value)
            for way, count, log in columns(moved.regressor(operator, direction), direction, kept, sms):
                mape = 100.0 * float(np.abs(np.exp(-log) - 1.0).mean())
                errors.setdefault((way, count), []).append((mape, float(np.quantile(np.abs(log), COVERAGE))))
        entries += [
            {
                "from": donor.name,
                "to": target.name,
                "rows": count,
                "way": way,
                "mape": round(mean(mape for mape, _ in found), 1),
                "median": round(median(mape for mape, _ in found), 1),
                "log_error": round(mean(error for _, error in found), 2),
            }
            for (way, count), found in sorted(errors.items(), key=lambda item: item[0][1])
        ]
    return {"format": FEW_ROWS_FORMAT, "seeds": SEEDS, "judged": JUDGED, "entries": entries}
