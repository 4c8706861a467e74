"""The residual of a regressor: a small gradient-boosted correction of log(time / physics).

A tree is at most three deep, hence 22 numbers that any reader can evaluate without scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from predictor.core.costs.regressors import TREE_LEAVES, TREE_NODES

Vector = NDArray[np.float64]
NUM_TREES = 120
DEPTH = 3
LEARNING_RATE = 0.18
MIN_ROWS_PER_LEAF = 6
# A large table that one device measured holds many kernels: more and smaller steps, each of a share of the features,
# lower the held-out error of matrix products by up to a fifth, of experts by a tenth. docs/adr/0025.
LARGE_TABLE = 800
LARGE_COLLECTIVES_TABLE = 2000
LARGE_TABLES_TREES = {
    "loss": "squared_error",
    "max_iter": 450,
    "learning_rate": 0.1,
    "max_features": 0.3,
    "min_samples_leaf": 8,
}
# Some of an operator's calls ran at a lower clock than their neighbours, so times of like shapes have two modes. Trees
# for the median show which; a row farther from them than OUTLYING standard deviations counts less, in proportion.
FIRST_TREES = {**LARGE_TABLES_TREES, "loss": "absolute_error", "max_iter": 150, "learning_rate": 0.15}
OUTLYING = 1.5
MAD_TO_SIGMA = 1.4826
SMALLEST_SCALE = 1e-6
# From 25 rows on trees lower the held-out error: docs/adr/0013-transfer.md.
FEWEST_ROWS = 20
DIGITS = 7
# numpy and plain Python may sum the parts of a feature in different orders.
LAST_BITS = 1e-12


@dataclass(frozen=True, slots=True)
class Residual:
    """An additive correction: ``baseline`` plus one leaf of each tree."""

    baseline: float
    trees: list[tuple[float, ...]]

    def predict(self, features: Vector) -> Vector:
        """Evaluate all rows of ``features`` (rows, features) at once."""
        total = np.full(len(features), self.baseline)
        rows = np.arange(len(features))
        for tree in self.trees:
            index = np.array(tree[:TREE_NODES], dtype=int)
            threshold = np.array(tree[TREE_NODES : 2 * TREE_NODES])
            node = np.zeros(len(features), dtype=int)
            for _ in range(DEPTH):
                node = 2 * node + 1 + (features[rows, index[node]] > threshold[node])
            total += np.array(tree[2 * TREE_NODES :])[node - TREE_NODES]
        return total


def rounded_up(value: float) -> float:
    """Return the smallest number of seven digits that is not below ``value``, rounding errors included.

    A threshold may equal a row's feature; the row must go left in every implementation.
    """
    if value == 0.0:
        return 0.0
    value += abs(value) * LAST_BITS
    nearest = float(f"{value:.{DIGITS}g}")
    step = 10.0 ** (floor(log10(abs(value))) - DIGITS + 1)
    return nearest if nearest >= value else float(f"{value + step / 2.0:.{DIGITS}g}")


def _flatten(nodes: NDArray[np.void]) -> tuple[float, ...]:
    """Return a fitted tree as 7 feature indices, 7 thresholds and 8 leaves of a complete binary tree."""
    index, threshold, leaves = [0] * TREE_NODES, [0.0] * TREE_NODES, [0.0] * TREE_LEAVES

    def place(node: int, heap: int) -> None:
        entry = nodes[node]
        if heap >= TREE_NODES:
            leaves[heap - TREE_NODES] = round(float(entry["value"]), 5)
            return
        split = not entry["is_leaf"]
        if split:
            index[heap] = int(entry["feature_idx"])
            threshold[heap] = rounded_up(float(entry["num_threshold"]))
        place(int(entry["left"]) if split else node, 2 * heap + 1)
        place(int(entry["right"]) if split else node, 2 * heap + 2)

    place(0, 0)
    return (*index, *threshold, *leaves)


def median_residual(log_ratio: Vector) -> Residual:
    """Return the residual without trees: the median of log(time / physics)."""
    return Residual(round(float(np.median(log_ratio)), 6), [])


def _boosted(settings: dict[str, Any]) -> HistGradientBoostingRegressor:
    """Return a model, not yet fitted, whose trees have the published form."""
    return HistGradientBoostingRegressor(
        **settings, max_depth=DEPTH, max_leaf_nodes=TREE_LEAVES, early_stopping=False, random_state=0
    )


def _huber_weights(features: Vector, log_ratio: Vector) -> Vector:
    """Return the weight of each row by its distance from trees for the median: 1 near them, Huber's beyond.

    Source: Holland and Welsch 1977, doi:10.1080/03610927708827533 (iteratively reweighted least squares).
    """
    distance = np.abs(log_ratio - _boosted(FIRST_TREES).fit(features, log_ratio).predict(features))
    scale = max(OUTLYING * MAD_TO_SIGMA * float(np.median(distance)), SMALLEST_SCALE)
    return np.asarray(1.0 / np.maximum(distance / scale, 1.0))


def fit_residual(
    features: Vector,
    log_ratio: Vector,
    is_one_device: bool = False,
    is_collective: bool = False,
    some_slowed: bool = True,
) -> Residual:
    """Fit log(time / physics); with fewer than FEWEST_ROWS rows, only its median.

    Args:
        features: (rows, features).
        log_ratio: (rows,).
        is_one_device: no shape repeats, as where several devices measured the same ones and differ.
        is_collective: the rows are of a collective, whose time no GPU's clock decides.
        some_slowed: a power limit may have slowed some rows down, which count less. Not those of attention, whose
            softmax leaves tensor cores idle: of it all that trees for the median miss is to be learnt.
    """
    if len(log_ratio) < FEWEST_ROWS:
        return median_residual(log_ratio)
    small = {
        "loss": "absolute_error",
        "max_iter": NUM_TREES,
        "learning_rate": LEARNING_RATE,
        "min_samples_leaf": MIN_ROWS_PER_LEAF,
    }
    is_large = is_one_device and len(log_ratio) >= (LARGE_COLLECTIVES_TABLE if is_collective else LARGE_TABLE)
    with threadpool_limits(1):  # sums in one order, so that the same rows give the same bytes
        weights = _huber_weights(features, log_ratio) if is_large and some_slowed and not is_collective else None
        model = _boosted(LARGE_TABLES_TREES if is_large else small).fit(features, log_ratio, weights)
    trees = [_flatten(stage[0].nodes) for stage in model._predictors]
    return Residual(round(float(model._baseline_prediction.item()), 6), trees)
