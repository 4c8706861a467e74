"""Measure the error of a transfer: predict each measured system from every other, and compare with its rows.

Operators: the other system's regressor on this system's hardware, through the code that answers for a data sheet.
Collectives: each measured one by the use that another one makes of the same links. What comes out are the constants
of ``predictor.costs.transfer`` and the table on the card of every system without measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fitting.gate import gate
from fitting.intervals import COVERAGE, upper_quantile
from fitting.pipeline import operators_of
from fitting.report import mean
from fitting.scores import percent
from fitting.tables import Row, Tables
from predictor.costs.collectives import COLLECTIVES
from predictor.costs.links import MESSAGE, RING, LinkRegressor, link_use
from predictor.costs.operator import Direction, Operator, Shape
from predictor.costs.published import PublishedSystem, with_hardware
from predictor.costs.regressors import DirectionRegressor, Regressor
from predictor.costs.transfer import computes
from predictor.costs.transfer_errors import TRANSFER_ERROR_FORMAT

PRECISION = "fp16"
FEWEST_SHAPES = 30
FORWARD = Direction.FORWARD
KINDS = ("compute", "stream")


def shape_times(rows: Sequence[Row]) -> dict[tuple[Operator, Shape], float]:
    """Return the median time of every distinct shape."""
    times: dict[tuple[Operator, Shape], list[float]] = {}
    for row in rows:
        times.setdefault((row.operator, row.shape), []).append(row.us)
    return {key: median(values) for key, values in times.items()}


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


def measured_rows(system: PublishedSystem, measurements: Path) -> dict[tuple[str, Direction], list[Row]]:
    """Return the rows of a published system that the gate keeps, by regressor and direction."""
    tables = Tables.find(measurements, system.gpu, system.precision)
    found = {}
    for name in tables.regressors():
        rows = tables.rows(name)
        for direction in operators_of(name)[0].directions:
            gated = gate([row for row in rows if row.direction is direction], system.hardware, system.precision)
            found[name, direction] = gated.kept
    return found


def own_regressor(system: PublishedSystem, operator: Operator, direction: Direction) -> DirectionRegressor | None:
    """Return a regressor that was fitted to rows of the system itself."""
    own = system.files.read(operator).get(direction)
    return own if own is not None and own.model.origin == "measured" else None


def operator_columns(
    donor: PublishedSystem, target: PublishedSystem, rows: dict[tuple[str, Direction], list[Row]]
) -> Iterator[dict[str, Any]]:
    """Yield the errors of the donor's regressors on the target's hardware."""
    moved = with_hardware(donor, target.hardware)
    for (name, direction), kept in rows.items():
        operator = operators_of(name)[0]
        if (
            name in COLLECTIVES
            or own_regressor(donor, operator, direction) is None
            or len(shape_times(kept)) < FEWEST_SHAPES
        ):
            continue
        yield {
            "from": donor.name,
            "to": target.name,
            "regressor": name,
            "direction": direction.value,
            "kind": KINDS[not computes(operator)],
            **column(moved.regressor(operator, direction), direction, kept),
        }


def collective_columns(
    system: PublishedSystem, rows: dict[tuple[str, Direction], list[Row]]
) -> Iterator[dict[str, Any]]:
    """Yield the errors of collectives that are timed by another one's use of the same links, per topology."""
    own = {name: own_regressor(system, COLLECTIVES[name], FORWARD) for name in COLLECTIVES}
    uses = {name: link_use(one.model, system.hardware) for name, one in own.items() if one is not None}
    for teacher, use in uses.items():
        for name in uses:
            kept = rows.get((name, FORWARD), [])
            if name == teacher:
                continue
            steps = uses[RING]
            by_links = LinkRegressor(system.hardware, use, use, steps, steps, 0.0)
            for topology in sorted({row.shape[1:] for row in kept}):
                found = column(by_links, FORWARD, [row for row in kept if row.shape[1:] == topology])
                yield {
                    "system": system.name,
                    "from": teacher,
                    "to": name,
                    "topology": f"{topology[0]}x{topology[1]}",
                    "kind": "alike" if MESSAGE not in (teacher, name) else "unlike",
                    **found,
                }


def constants(operators: Sequence[dict[str, Any]], collectives: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what ``predictor.costs.transfer_errors`` reads: log errors per regressor, per kind, and of collectives.

    Of collectives the 90 % quantile over topologies, since each is one setting of the links.
    """
    regressors: dict[str, float] = {}
    for entry in operators:
        regressors[entry["regressor"]] = max(regressors.get(entry["regressor"], 0.0), entry["log_error"])
    kinds = {
        kind: round(median(e["log_error"] for e in operators if e["kind"] == kind), 2)
        for kind in KINDS
        if any(e["kind"] == kind for e in operators)
    }
    alike = {
        kind: round(upper_quantile(np.array(found), COVERAGE), 2)
        for kind in ("alike", "unlike")
        if (found := [e["log_error"] for e in collectives if e["kind"] == kind])
    }
    return {
        "regressors": {name: round(error, 2) for name, error in sorted(regressors.items())},
        "kinds": kinds,
        "collectives": alike,
    }


def distances(systems: Sequence[PublishedSystem]) -> dict[str, float]:
    """Return how far apart the first two systems' GPUs are: log ratios of matrix peak and memory bandwidth."""
    one, other = (system.hardware.gpu for system in systems[:2])
    flops = [gpu.peak_tflop_per_s[PRECISION].value for gpu in (one, other)]
    bandwidth = [gpu.memory_bandwidth_gb_per_s.value for gpu in (one, other)]
    return {
        "flops": log(max(flops) / min(flops)),
        "bytes": log(max(bandwidth) / min(bandwidth)),
    }


def transfer_error(folders: Sequence[Path], measurements: Path) -> dict[str, Any]:
    """Return the errors between every two of several published systems.

    Raises:
        FileNotFoundError: a folder is missing.
        PublishedError: a system is damaged.
        TableError: a table cannot be read, or there is none of a system's GPU.
    """
    systems = [PublishedSystem(folder, PRECISION) for folder in folders]
    rows = {system.name: measured_rows(system, measurements) for system in systems}
    operators = [
        entry
        for donor, target in permutations(systems, 2)
        for entry in operator_columns(donor, target, rows[target.name])
    ]
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
