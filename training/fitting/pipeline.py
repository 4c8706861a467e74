"""Fit every regressor of a system: one job per regressor and direction, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fitting.gate import ColumnCount, Gated, gate
from fitting.heldout import hold_out, untouched_coverage
from fitting.intervals import calibrate
from fitting.regress import Fitted, fit
from fitting.residual import FEWEST_ROWS
from fitting.samples import Samples, columns, parts, to_samples, topologies
from fitting.scores import Score, score
from fitting.tables import Row, Tables, operators_of, shape_times
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.operator import Direction, Shape
from predictor.core.costs.regressors import DirectionModel, Interval
from predictor.core.hardware.hardware import System

# Errors on groups inside a node that were not measured: each group left out, answered with the nearest one's residual.
# Behind a switch larger and smaller groups run the same protocols, so the residual of the nearest group carries over;
# on eight GPUs' tables it lowers the mean error of a group left out from 16 to 9 %.
Vector = NDArray[np.float64]
GPUS = 2  # coordinate of the hull with the GPUs of a node
FEWEST_MEASURED = 12
EXAMPLES = 40


def _answers(fitted: Fitted, samples: Samples, group: Samples, others: NDArray[np.bool_]) -> Vector:
    """Return the answers to a group's rows, with the curve of the other group that is nearest in GPUs."""
    distance = np.abs(samples.hull[:, GPUS] - group.hull[0, GPUS])
    nearest = samples.part[others][np.argmin(distance[others])]
    return fitted.us(replace(group, part=np.full(len(group), nearest)))


def unseen_in_node(samples: Samples) -> Interval | None:
    """Return the interval of groups that were not measured; None without curves, between nodes, or of too few rows."""
    inside = len(np.unique(samples.hull[:, 1])) == 1 and bool((samples.hull[:, 1] == np.log(2.0)).all())
    if not (inside and samples.own_ranges and samples.is_one_device):
        return None
    errors = []
    for part in np.unique(samples.part):
        held = samples.part == part
        if (~held).sum() < FEWEST_MEASURED:
            return None
        fitted, group = fit(samples.take(~held)), samples.take(held)
        errors.append(np.log(group.us / _answers(fitted, samples, group, ~held)))
    return calibrate(np.concatenate(errors), [])


@dataclass(frozen=True, slots=True)
class Job:
    """One regressor in one direction."""

    system: System
    tables: Tables
    regressor: str
    direction: Direction
    untouched: bool = False
    most_launch_us: float = np.inf


@dataclass(frozen=True, slots=True)
class Example:
    """A measured shape and its time, to check a derivation on; never published."""

    operator: str
    shape: Shape
    us: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of one job: model, kept and dropped rows, held-out errors."""

    regressor: str
    direction: Direction
    model: DirectionModel | None
    columns: dict[str, ColumnCount]
    scores: dict[str, Score]
    examples: tuple[Example, ...]


def _examples(rows: list[Row]) -> tuple[Example, ...]:
    """Return the median times of shapes picked evenly over the sorted list of them."""
    times = sorted((operator.name, shape, us) for (operator, shape), us in shape_times(rows).items())
    return tuple(Example(*time) for time in times[:: max(1, len(times) // EXAMPLES)])


def gated_rows(tables: Tables, regressor: str, system: System) -> Iterator[tuple[Direction, Gated]]:
    """Yield each direction of a regressor with its gated rows."""
    rows = tables.rows(regressor)
    for direction in operators_of(regressor)[0].directions:
        yield direction, gate([row for row in rows if row.direction is direction], system, tables.precision)


def run_job(job: Job) -> Fit:
    """Gate, fit and judge one regressor in one direction."""
    rows = [row for row in job.tables.rows(job.regressor) if row.direction is job.direction]
    gated = gate(rows, job.system, job.tables.precision)
    counted = len(gated.kept)
    if counted < FEWEST_ROWS:
        # Too few to fit a model to; they still give the error of a donor's model.
        return Fit(job.regressor, job.direction, None, gated.columns, {}, _examples(gated.kept))
    members = [operator.name for operator in operators_of(job.regressor)]
    samples = to_samples(gated.kept, int(job.system.gpu.num_multiprocessors.value), members, job.most_launch_us)
    held_out = hold_out(samples, per_table=gated.kept[0].is_collective)
    fitted = fit(samples, held_out.use_residual)
    names = parts(gated.kept)
    by_part = {
        names[number]: interval.model_copy(update={"measured": fitted.ranges.get(number)})
        for number, interval in held_out.intervals.items()
        if number is not None
    }
    model = fitted.publish(held_out.intervals[None], by_part, counted, topologies(gated.kept), names)
    if fitted.curves:
        model = model.model_copy(update={"unseen_in_node": unseen_in_node(samples)})
    untouched = untouched_coverage(samples, gated.kept[0].is_collective) if job.untouched else None
    scores = score(samples, held_out, columns(gated.kept), untouched)
    return Fit(job.regressor, job.direction, model, gated.columns, scores, _examples(gated.kept))


def shortest_message_us(system: System, tables: Tables) -> float:
    """Return the time of the shortest point-to-point message, the upper bound of a collective's launch term.

    Tables of large messages alone do not determine the launch; a fit without the bound errs by milliseconds on small
    ones. No bound on a processor, where a collective is several hand-overs between each rank's threads.
    """
    if system.links.engine == "processor" or "point_to_point" not in tables.regressors():
        return np.inf
    kept = gate(tables.rows("point_to_point"), system, tables.precision).kept
    return min((row.us for row in kept), default=np.inf)


def fit_all(system: System, tables: Tables, untouched: bool = False) -> list[Fit]:
    """Fit every regressor that has a table; the result is in the same order every time.

    Args:
        system: the hardware that bounds the rows.
        tables: what was measured.
        untouched: also check the intervals on shapes that neither fit nor calibration has seen; twice the time.
    """
    shortest = shortest_message_us(system, tables)
    jobs = [
        Job(system, tables, regressor, direction, untouched, shortest if regressor in COLLECTIVES else np.inf)
        for regressor in tables.regressors()
        for direction in operators_of(regressor)[0].directions
    ]
    slowest_first = sorted(jobs, key=lambda job: -tables.size_bytes(job.regressor))
    with ProcessPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        fits = list(pool.map(run_job, slowest_first))
    return sorted(fits, key=lambda fit: (fit.regressor in COLLECTIVES, fit.regressor, fit.direction != "forward"))
