"""Measure the error of a transfer: predict each measured system from every other, and compare with its rows.

Operators: the donor's regressor on the target's hardware, through the code that answers for a data-sheet system.
Collectives: each measured collective at the link efficiency of another. Results: the constants of
``predictor.core.costs.transfer_errors``, and the table on the card of every data-sheet system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fitting.intervals import COVERAGE, upper_quantile
from fitting.pipeline import gated_rows
from fitting.report import mean
from fitting.scores import percent
from fitting.tables import Row, Tables, operators_of, shape_times
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.links import MESSAGE, RING, LinkRegressor, link_use
from predictor.core.costs.operator import Direction, Operator
from predictor.core.costs.published import PublishedSystem, with_hardware
from predictor.core.costs.regressors import DirectionRegressor, Regressor
from predictor.core.costs.transfer import computes
from predictor.core.costs.transfer_errors import TRANSFER_ERROR_FORMAT
from predictor.core.costs.variants import as_tabled

PRECISION = "fp16"
FEWEST_SHAPES = 30
FORWARD = Direction.FORWARD
KINDS = ("compute", "stream")
Rows = dict[tuple[str, Direction], list[Row]]


def column(regressor: Regressor, direction: Direction, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the errors of a regressor on rows, each distinct shape counted once.

    ``bias`` is the median of log(measured / answered), ``log_error`` the 90 % quantile of its absolute value.
    """
    times = shape_times(rows)
    answers = [regressor.answer(operator, direction, shape).us for operator, shape in times]
    logs = np.log(np.array(list(times.values())) / np.array(answers))
    relative = np.abs(np.exp(-logs) - 1.0)
    return {
        "shapes": len(times),
        "mape": percent(relative.mean()),
        "median": percent(float(np.median(relative))),
        "bias": round(float(np.median(logs)), 3),
        "log_error": round(upper_quantile(np.abs(logs), COVERAGE), 3),
    }


def measured_systems(folders: Sequence[Path], measurements: Path) -> tuple[list[PublishedSystem], dict[str, Rows]]:
    """Return published systems, and by name their gated rows.

    Raises:
        FileNotFoundError: a folder is missing.
        PublishedError: a system is damaged.
        TableError: a table cannot be read, or there is none of a system's GPU.
    """
    systems = [as_tabled(PublishedSystem(folder, PRECISION)) for folder in folders]
    rows: dict[str, Rows] = {}
    for system in systems:
        tables = Tables.find(measurements, system.gpu, system.precision)
        rows[system.name] = {
            (name, direction): gated.kept
            for name in tables.regressors()
            for direction, gated in gated_rows(tables, name, system.hardware)
        }
    return systems, rows


def own_regressor(system: PublishedSystem, operator: Operator, direction: Direction) -> DirectionRegressor | None:
    """Return a regressor that was fitted to rows of the system itself."""
    own = system.files.read(operator).get(direction)
    return own if own is not None and own.model.origin == "measured" else None


@dataclass(frozen=True, slots=True)
class Transferred:
    """An operator's regressor of a donor on the hardware of a target, and the target's rows."""

    donor: PublishedSystem
    target: PublishedSystem
    operator: Operator
    direction: Direction
    rows: list[Row]

    @property
    def regressor(self) -> Regressor:
        """Return the donor's regressor on the target's hardware, as the tables have it."""
        return with_hardware(self.donor, self.target.hardware).regressor(self.operator, self.direction)


def transfers(systems: Sequence[PublishedSystem], rows: dict[str, Rows], fewest_shapes: int) -> Iterator[Transferred]:
    """Yield every operator that a donor measured and of which a target has enough shapes, for every two systems."""
    for donor, target in permutations(systems, 2):
        for (name, direction), kept in rows[target.name].items():
            operator = operators_of(name)[0]
            measured = name not in COLLECTIVES and own_regressor(donor, operator, direction) is not None
            if measured and len(shape_times(kept)) >= fewest_shapes:
                yield Transferred(donor, target, operator, direction, kept)


def operator_column(transferred: Transferred) -> dict[str, Any]:
    """Return the errors of a donor's regressor on the target's rows."""
    return {
        "from": transferred.donor.name,
        "to": transferred.target.name,
        "regressor": transferred.operator.regressor_name,
        "direction": transferred.direction.value,
        "kind": KINDS[not computes(transferred.operator)],
        **column(transferred.regressor, transferred.direction, transferred.rows),
    }


def collective_columns(system: PublishedSystem, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield the errors of collectives that are timed by another collective's use of the same links, per topology."""
    own = {name: own_regressor(system, collective, FORWARD) for name, collective in COLLECTIVES.items()}
    uses = {name: link_use(fit.model, system.hardware) for name, fit in own.items() if fit is not None}
    for teacher, name in permutations(uses, 2):
        kept = rows.get((name, FORWARD), [])
        by_links = LinkRegressor(system.hardware, uses[teacher], uses[teacher], uses[RING], uses[RING], 0.0)
        for topology in sorted({row.shape[1:] for row in kept}):
            yield {
                "system": system.name,
                "from": teacher,
                "to": name,
                "topology": f"{topology[0]}x{topology[1]}",
                "kind": "alike" if MESSAGE not in (teacher, name) else "unlike",
                **column(by_links, FORWARD, [row for row in kept if row.shape[1:] == topology]),
            }


def constants(operators: Sequence[dict[str, Any]], collectives: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return log errors per regressor, per kind, and of collectives, for ``predictor.core.costs.transfer_errors``.

    Of collectives the 90 % quantile over topologies, since a topology is a single setting of the links.
    """
    regressors = _log_errors(operators, "regressor")
    kinds, reaches = _log_errors(operators, "kind"), _log_errors(collectives, "kind")
    return {
        "regressors": {name: round(max(errors), 2) for name, errors in sorted(regressors.items())},
        "kinds": {kind: round(median(kinds[kind]), 2) for kind in KINDS if kind in kinds},
        "collectives": {
            kind: round(upper_quantile(np.array(reaches[kind]), COVERAGE), 2)
            for kind in ("alike", "unlike")
            if kind in reaches
        },
    }


def _log_errors(entries: Sequence[dict[str, Any]], key: str) -> dict[str, list[float]]:
    result: dict[str, list[float]] = {}
    for entry in entries:
        result.setdefault(entry[key], []).append(entry["log_error"])
    return result


def distances(systems: Sequence[PublishedSystem]) -> dict[str, float]:
    """Return how far apart the first two systems' GPUs are: log ratios of matrix peak and memory bandwidth."""
    gpus = [system.hardware.gpu for system in systems[:2]]
    flops = [gpu.peak_tflop_per_s[PRECISION].value for gpu in gpus]
    bandwidth = [gpu.memory_bandwidth_gb_per_s.value for gpu in gpus]
    return {"flops": log(max(flops) / min(flops)), "bytes": log(max(bandwidth) / min(bandwidth))}


def transfer_error(folders: Sequence[Path], measurements: Path) -> dict[str, Any]:
    """Return the errors between every two of several published systems; raises as ``measured_systems``."""
    systems, rows = measured_systems(folders, measurements)
    operators = [operator_column(transferred) for transferred in transfers(systems, rows, FEWEST_SHAPES)]
    collectives = [entry for system in systems for entry in collective_columns(system, rows[system.name])]
    keys = ("mape", "median", "log_error")
    return {
        "format": TRANSFER_ERROR_FORMAT,
        "systems": [system.name for system in systems],
        "unit": "percent of the measured time; bias and log_error are natural logarithms",
        "distance": distances(systems),
        "mean": {kind: {key: mean(e[key] for e in operators if e["kind"] == kind) for key in keys} for kind in KINDS},
        "constants": constants(operators, collectives),
        "operator_columns": operators,
        "collective_columns": collectives,
    }
