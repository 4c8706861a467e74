"""Held-out errors of a regressor: inside the measured range, beyond its largest work, and on an unseen topology.

Three splits; all rows of a kernel shape are on the same side of each:

- five folds of the shapes: the error of interpolation;
- the largest 20 % of rows by work, and a second such split nested in the rest: the error of extrapolation;
- each topology of a collective, answered by physics alone, as a prediction does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fitting.intervals import calibrate, covered
from fitting.physics import fit_physics
from fitting.regress import fit
from fitting.samples import Samples
from predictor.core.costs.collectives import INTERFACE_TERM
from predictor.core.costs.regressors import Interval

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
FOLDS = 5
LARGEST_SHARE = 0.2
FEWEST_PER_PART = 60
Untouched = tuple[Mask, Mask]
Errors = tuple[Vector, Vector]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Answers to rows that the answering fit had not seen.

    Attributes:
        us: from five folds of the shapes, (rows,).
        physics_us: the same without the residual.
        in_interval: whether the measured time lay in an interval calibrated without its fold.
        largest: which rows are the largest by work.
        largest_us: answers to those rows from a fit to the others.
        largest_in_interval: whether they lay in the interval calibrated on the others.
        unseen_topology_us: answers of physics fitted to all other topologies; empty for operators.
        intervals: to publish, by part, and of all rows under None.
        use_residual: the held-out error with the residual is below that of physics alone.
    """

    us: Vector
    physics_us: Vector
    in_interval: Mask
    largest: Mask
    largest_us: Vector
    largest_in_interval: Mask
    intervals: dict[int | None, Interval]
    use_residual: bool
    unseen_topology_us: Vector = field(default_factory=lambda: np.empty(0))


def folds(samples: Samples) -> NDArray[np.int64]:
    """Return a fold number per row; all rows of one shape share it."""
    shapes = np.unique(samples.group)
    numbers = np.random.default_rng(0).permutation(len(shapes)) % FOLDS
    return np.asarray(numbers[np.searchsorted(shapes, samples.group)])


def largest_rows(samples: Samples, per_table: bool) -> Mask:
    """Return the largest fifth of the rows by work, over the whole regressor or within each of its tables."""
    if not per_table:
        return np.asarray(samples.work > np.quantile(samples.work, 1.0 - LARGEST_SHARE))
    result = np.zeros(len(samples), dtype=bool)
    for number in np.unique(samples.table):
        rows = samples.table == number
        result |= rows & (samples.work > np.quantile(samples.work[rows], 1.0 - LARGEST_SHARE))
    return result


def cross_validate(samples: Samples) -> tuple[Vector, Vector, NDArray[np.int64]]:
    """Return each row's answer, physics' answer and fold, from fits that have not seen its shape."""
    fold = folds(samples)
    us, physics_us = np.empty(len(samples)), np.empty(len(samples))
    for number in np.unique(fold):
        held = fold == number
        fitted = fit(samples.take(~held))
        us[held] = fitted.us(samples.take(held))
        physics_us[held] = fitted.without_residual(samples.take(~held)).us(samples.take(held))
    return us, physics_us, fold


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A split by size: the rows held out, the answers to them, µs, and their log distances from the hull."""

    held: Mask
    us: Vector
    distance: Vector


def extrapolate(samples: Samples, per_table: bool, use_residual: bool) -> Extrapolation:
    """Hold out the largest rows and answer them from a fit to the others."""
    held = largest_rows(samples, per_table)
    rest = samples.take(~held)
    fitted = fit(rest, use_residual)
    largest = samples.take(held)
    return Extrapolation(held, fitted.us(largest), fitted.distance(largest))


def unseen_topologies(samples: Samples) -> Vector:
    """Return the answer to each row of physics fitted to all other topologies; NaN inside a node.

    NaN also where no other topology spans nodes: links inside a node tell nothing of those between nodes.
    """
    result = np.full(len(samples), np.nan)
    between = samples.terms[:, INTERFACE_TERM] > 0.0
    for number in np.unique(samples.part):
        held = samples.part == number
        if (between[~held] & between[held].all()).any():
            rest = samples.take(~held)
            result[held] = fit_physics(rest.terms, rest.us, most_launch_us=rest.most_launch_us).predict(
                samples.terms[held]
            )
    return result


def _outside(samples: Samples, splits: Sequence[Extrapolation], part: int | None) -> list[Errors]:
    """Return (log errors, distances) of each split, of a part and of all rows; the interval takes the widest.

    A part alone has too few largest rows to calibrate an extrapolation.
    """
    result: list[Errors] = []
    for split in splits:
        held = samples.take(split.held)
        chosen = held.part == part if part is not None else np.ones(len(held), dtype=bool)
        if chosen.any():
            result.append((np.log(held.us / split.us)[chosen], split.distance[chosen]))
    return result if part is None else [*result, *_outside(samples, splits, None)]


def calibrate_parts(
    samples: Samples, log_error: Vector, known: Mask, splits: Sequence[Extrapolation], unseen: Sequence[Errors] = ()
) -> dict[int | None, Interval]:
    """Return the interval of all rows under None, and of each part with at least FEWEST_PER_PART rows.

    Args:
        samples: all rows.
        log_error: held-out log(measured / predicted), (rows,).
        known: rows that may be calibrated on.
        splits: extrapolations to calibrate the outside on.
        unseen: errors on unseen topologies, which the interval of all rows must cover too.
    """
    result: dict[int | None, Interval] = {
        None: calibrate(log_error[known], [*_outside(samples, splits, None), *unseen]),
    }
    numbers = np.unique(samples.part)
    for number in numbers if len(numbers) > 1 else ():
        inside = log_error[known & (samples.part == number)]
        if len(inside) >= FEWEST_PER_PART:
            result[int(number)] = calibrate(inside, _outside(samples, splits, int(number)))
    return result


def covered_parts(
    intervals: Mapping[int | None, Interval], part: NDArray[np.int64], log_error: Vector, distance: Vector
) -> Mask:
    """Return which errors lie in the interval of their part."""
    result = np.zeros(len(log_error), dtype=bool)
    for number in np.unique(part):
        rows = part == number
        result[rows] = covered(intervals.get(int(number), intervals[None]), log_error[rows], distance[rows])
    return result


def _widened(split: Extrapolation, outer: Mask) -> Extrapolation:
    """Return a split of the rows outside ``outer`` as a split of all rows."""
    held = np.zeros(len(outer), dtype=bool)
    held[~outer] = split.held
    return Extrapolation(held, split.us, split.distance)


def hold_out(samples: Samples, per_table: bool) -> HeldOut:
    """Run every split and calibrate the intervals.

    Args:
        samples: rows that the gate kept.
        per_table: take the largest rows of each table, not of all tables; for collectives, whose topologies differ in
            work by construction.
    """
    us, physics_us, fold = cross_validate(samples)
    error, physics_error = (np.abs(answer / samples.us - 1.0).mean() for answer in (us, physics_us))
    use_residual = bool(error < physics_error)
    if not use_residual:
        us = physics_us
    log_error = np.log(samples.us / us)
    outer = extrapolate(samples, per_table, use_residual)
    nested = _widened(extrapolate(samples.take(~outer.held), per_table, use_residual), outer.held)
    in_interval = np.zeros(len(samples), dtype=bool)
    inside = np.zeros(len(samples))
    for number in np.unique(fold):
        held = fold == number
        intervals = calibrate_parts(samples, log_error, ~held, [nested])
        in_interval[held] = covered_parts(intervals, samples.part[held], log_error[held], inside[held])
    honest = calibrate_parts(samples, log_error, ~outer.held, [nested])
    largest = samples.take(outer.held)
    unseen_us = unseen_topologies(samples) if per_table else np.empty(0)
    unseen = np.log(samples.us[: len(unseen_us)] / unseen_us)
    unseen = unseen[np.isfinite(unseen)]
    return HeldOut(
        us=us,
        physics_us=physics_us,
        in_interval=in_interval,
        largest=outer.held,
        largest_us=outer.us,
        largest_in_interval=covered_parts(honest, largest.part, np.log(largest.us / outer.us), outer.distance),
        intervals=calibrate_parts(
            samples, log_error, inside == 0.0, [nested, outer], [(unseen, np.zeros(len(unseen)))] if len(unseen) else []
        ),
        use_residual=use_residual,
        unseen_topology_us=unseen_us,
    )


def untouched_coverage(samples: Samples, per_table: bool) -> Untouched:
    """Fit and calibrate on four fifths of the shapes; return the masks of the other rows and of those covered.

    Rows outside the hull of the fitted rows are left out: the split by size judges those.
    """
    held = folds(samples) == 0
    rest, test = samples.take(~held), samples.take(held)
    inner = hold_out(rest, per_table)
    fitted = fit(rest, inner.use_residual)
    distance = fitted.distance(test)
    chosen, inside = held.copy(), np.zeros(len(samples), dtype=bool)
    chosen[held] = distance == 0.0
    inside[held] = covered_parts(inner.intervals, test.part, np.log(test.us / fitted.us(test)), distance)
    return chosen, inside
