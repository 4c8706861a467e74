"""The physics of a regressor: a non-negative sum of interpretable terms with least relative error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fitting.tables import Row
from predictor.core.costs.features import physics_terms

Vector = NDArray[np.float64]
HUBER_DELTA = 0.05
REWEIGHTINGS = 6
SMALLEST_US = 1e-3
FLOOR_QUANTILE = 0.01
CLEAR_OF_FLOOR = 1.5
FEWEST_CLEAR_ROWS = 20
HOST_BOUND_SHARE = 0.5
HOST_BOUND_PASSES = 4
HOST_BOUND_ERROR = 1.1


def terms_matrix(rows: Sequence[Row], num_multiprocessors: int) -> Vector:
    """Return the physics terms of each row, (rows, terms)."""
    return np.array(
        [physics_terms(row.operator.work(row.shape, row.direction, num_multiprocessors)) for row in rows], dtype=float
    )


@dataclass(frozen=True, slots=True)
class Physics:
    """Fitted physics: microseconds per term, and whether launching overlaps running (see ``physics_us``)."""

    coefficients: Vector
    overlapped: bool

    def predict(self, matrix: Vector) -> Vector:
        """Return microseconds per row of terms."""
        launch = self.coefficients[0] * matrix[:, 0]
        device = matrix[:, 1:] @ self.coefficients[1:]
        result: Vector = np.maximum(launch, device) if self.overlapped else launch + device
        return np.maximum(result, SMALLEST_US)


def _non_negative(matrix: Vector, us: Vector, least: Vector, known_us: float = 0.0) -> Vector:
    """Return coefficients c ≥ least that minimise the Huber loss of (known_us + matrix @ c) / us − 1."""
    relative = matrix / us[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-30)
    scaled = relative / scale
    least = least * scale
    target = np.maximum(1.0 - known_us / us - scaled @ least, 0.0)
    weight = np.ones(len(us))
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weight)
        solution, _ = nnls(scaled * root[:, None], target * root)
        error = np.abs(scaled @ solution - target)
        weight = np.where(error <= HUBER_DELTA, 1.0, HUBER_DELTA / np.maximum(error, 1e-12))
    coefficients: Vector = (solution + least) / scale
    return coefficients


def _overlapped(matrix: Vector, us: Vector, least: Vector) -> Physics | None:
    """Fit the maximum of launch and device time: device terms on the rows well above the shortest row."""
    floor = float(np.quantile(us, FLOOR_QUANTILE))
    clear = us > CLEAR_OF_FLOOR * floor
    if clear.sum() < FEWEST_CLEAR_ROWS:
        return None
    device = _non_negative(matrix[clear, 1:], us[clear], least[1:])
    hidden = matrix[:, 1:] @ device < us / CLEAR_OF_FLOOR
    launch = float(np.median(us[hidden])) if hidden.any() else 0.0
    return Physics(np.array([launch, *device]), overlapped=True)


def _host_bound(matrix: Vector, us: Vector, least: Vector) -> Physics | None:
    """Fit the maximum of launch and device time where the host decides most rows; None where it does not.

    Host times scatter, so rows are clear of the host above CLEAR_OF_FLOOR times its median, not the shortest row.
    """
    launch, hidden = float(np.quantile(us, FLOOR_QUANTILE)), np.zeros(len(us), dtype=bool)
    for _ in range(HOST_BOUND_PASSES):
        clear = us > CLEAR_OF_FLOOR * launch
        if clear.sum() < FEWEST_CLEAR_ROWS:
            return None
        device = _non_negative(matrix[clear, 1:], us[clear], least[1:])
        hidden = matrix[:, 1:] @ device < us / CLEAR_OF_FLOOR
        if hidden.mean() < HOST_BOUND_SHARE:
            return None
        launch = float(np.median(us[hidden]))
    return Physics(np.array([launch, *device]), overlapped=True)


def fit_physics(matrix: Vector, us: Vector, least: Vector | None = None, most_launch_us: float = np.inf) -> Physics:
    """Fit launch + device time, and the maximum of both; return the fit with the smaller mean relative error.

    Where the host decides most rows, the maximum may err by up to HOST_BOUND_ERROR times as much: the few rows that the
    device decides hardly count in the mean, and the sum would extrapolate them by a device that is too fast.

    Args:
        matrix: (rows, terms), the launch first.
        us: measured microseconds, (rows,).
        least: smallest allowed coefficient per term, where a peak bounds one; zero if None.
        most_launch_us: largest allowed launch; long rows alone do not determine it.
    """
    least = np.zeros(matrix.shape[1]) if least is None else least
    # A term that is constant over the rows cannot be told from the launch; it is left out.
    constant = np.ptp(matrix, axis=0) == 0.0
    constant[0] = False
    matrix = np.where(constant, 0.0, matrix)
    added = Physics(_non_negative(matrix, us, least), overlapped=False)
    if added.coefficients[0] > most_launch_us:
        running = _non_negative(matrix[:, 1:], us, least[1:], known_us=most_launch_us)
        added = Physics(np.array([most_launch_us, *running]), overlapped=False)
    overlapped = _overlapped(matrix, us, least) if most_launch_us == np.inf else None

    def error(physics: Physics) -> float:
        return float(np.mean(np.abs(physics.predict(matrix) / us - 1.0)))

    best = min((p for p in (added, overlapped) if p is not None), key=error)
    host_bound = _host_bound(matrix, us, least) if overlapped is not None and not best.overlapped else None
    return host_bound if host_bound is not None and error(host_bound) <= HOST_BOUND_ERROR * error(best) else best
