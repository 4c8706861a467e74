"""The smooth part of a collective's residual: per topology, a line through log(time / physics) over the message size.

NCCL changes protocol and number of channels with the size, at sizes of its own for every topology. A tree's steps are
too coarse for that, physics too smooth. Mean of both errs least: on held-out sizes of eight of nine GPUs 5.8 % with
trees alone, 5.2 % with the line alone, 5.0 % with CURVE_SHARE of the line; on the ninth (L40S) 14.9, 8.3 and 8.9 %.
"""

from __future__ import annotations

from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from fitting.residual import Residual
from predictor.core.costs.regressors import TREE_LEAVES, Curve

Vector = NDArray[np.float64]
CURVE_SHARE = 0.7
OCTAVE = log(2.0)
SMOOTHNESS = 0.1
# Beyond this deviation a size counts less, in proportion: single times of small messages may be several times too long.
ROBUST_LOG = 0.03
REWEIGHTINGS = 6
RIDGE = 1e-6
DECIMALS = 5


def _hats(x: Vector, knots: Vector) -> Vector:
    """Return the share of every knot in each point of the line, (points, knots)."""
    return np.array([np.interp(x, knots, row) for row in np.eye(len(knots))]).T


def fit_curve(x: Vector, y: Vector, share: float = CURVE_SHARE) -> Curve:
    """Fit a line with a knot about every octave, its bends kept small, and return a share of it.

    Args:
        x: logarithm of the size.
        y: log(time / physics).
        share: of the line.
    """
    steps = max(1, ceil((x.max() - x.min()) / OCTAVE))
    knots = np.linspace(x.min(), max(x.max(), x.min() + OCTAVE), steps + 1)
    hats = _hats(x, knots)
    bends = np.diff(np.eye(len(knots)), 2, axis=0)
    penalty = SMOOTHNESS * bends.T @ bends + RIDGE * np.eye(len(knots))
    weight = np.ones(len(y))
    for _ in range(REWEIGHTINGS):
        weighted = hats * weight[:, None]
        values = np.linalg.solve(weighted.T @ hats + penalty, weighted.T @ y)
        weight = 1.0 / np.maximum(np.abs(hats @ values - y) / ROBUST_LOG, 1.0)
    return Curve(
        low=round(float(knots[0]), DECIMALS),
        step=round(float(knots[1] - knots[0]), DECIMALS),
        values=tuple(round(float(value) * share, DECIMALS) for value in values),
    )


def split_residual(
    residual: Residual, x: Vector, y: Vector, part: NDArray[np.int64]
) -> tuple[Residual, dict[int, Curve]]:
    """Return the trees' share of a residual, and the curve of each part; curves alone where there are no trees."""
    share = CURVE_SHARE if residual.trees else 1.0
    numbers = np.unique(part).tolist()
    curves = {number: fit_curve(x[part == number], y[part == number], share) for number in numbers}
    return rest_of(residual, 1.0 - share), curves


def evaluate(curves: dict[int, Curve], x: Vector, part: NDArray[np.int64]) -> Vector:
    """Return each row's value of its part's curve; 0 where a part has none."""
    result = np.zeros(len(x))
    for number, curve in curves.items():
        rows = part == number
        result[rows] = [curve.at(value) for value in x[rows].tolist()]
    return result


def rest_of(residual: Residual, share: float) -> Residual:
    """Return a share of a residual."""
    trees = [
        (*tree[:-TREE_LEAVES], *(round(leaf * share, DECIMALS) for leaf in tree[-TREE_LEAVES:]))
        for tree in residual.trees
    ]
    return Residual(round(residual.baseline * share, 6), trees)
