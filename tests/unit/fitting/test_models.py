from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from fitting import residual
from fitting.heldout import hold_out
from fitting.intervals import calibrate, covered, upper_quantile
from fitting.physics import fit_physics
from fitting.regress import fit, full_features
from fitting.residual import fit_residual
from fitting.samples import to_samples
from fitting.tables import Row
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.features import residual_features
from predictor.core.costs.operator import Direction
from predictor.core.costs.regressors import TREE_LEAVES
from tests.unit.fitting_tables import SMS, gelu_us


def rows() -> list[Row]:
    operator = catalogue()["gelu"]
    return [
        Row(operator, "gelu", direction, (tokens, width), gelu_us(tokens, width, direction))
        for direction in (Direction.FORWARD,)
        for tokens in range(256, 8192, 384)
        for width in (1024, 2048, 4096, 8192, 16384)
    ]


def test_physics_recovers_the_coefficients_it_was_made_of() -> None:
    rng = np.random.default_rng(0)
    matrix = np.column_stack([np.ones(300), rng.uniform(1e9, 1e12, 300), rng.uniform(1e6, 1e9, 300)])
    us = matrix @ np.array([7.0, 5e-9, 1e-6])
    physics = fit_physics(matrix, us)
    assert not physics.overlapped
    assert physics.coefficients == pytest.approx([7.0, 5e-9, 1e-6], rel=1e-3)


def test_physics_finds_that_launching_overlaps_running() -> None:
    size = np.geomspace(1e5, 1e9, 300)
    matrix = np.column_stack([np.ones(300), np.zeros(300), size])
    physics = fit_physics(matrix, np.maximum(200.0, 1e-6 * size))
    assert physics.overlapped
    assert physics.coefficients[[0, 2]] == pytest.approx([200.0, 1e-6], rel=0.02)


def test_physics_is_never_negative() -> None:
    matrix = np.column_stack([np.ones(50), np.linspace(1, 50, 50)])
    assert (fit_physics(matrix, 100.0 - matrix[:, 1]).coefficients >= 0.0).all()


def test_flattened_trees_answer_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(1)
    features, target = rng.uniform(size=(400, 5)), rng.normal(size=400)
    with threadpool_limits(1):  # as the fit does: sums in one order
        model = HistGradientBoostingRegressor(
            loss="absolute_error",
            max_iter=residual.NUM_TREES,
            max_depth=residual.DEPTH,
            max_leaf_nodes=TREE_LEAVES,
            learning_rate=residual.LEARNING_RATE,
            min_samples_leaf=residual.MIN_ROWS_PER_LEAF,
            early_stopping=False,
            random_state=0,
        )
        model.fit(features, target)
    ours = fit_residual(features, target).predict(features)
    # Leaves are rounded to five decimals; nothing else differs.
    assert ours == pytest.approx(model.predict(features), abs=1e-5 * residual.NUM_TREES)


def test_rows_of_a_lower_clock_do_not_move_those_of_the_usual_clock() -> None:
    rng = np.random.default_rng(2)
    features = rng.uniform(size=(residual.LARGE_TABLE, 3))
    target = 0.3 * features[:, 0] + rng.normal(scale=0.02, size=len(features))
    slow = rng.uniform(size=len(features)) < 0.15
    target[slow] += 0.6
    operator = fit_residual(features, target, is_one_device=True)
    weighed_alike = residual._boosted(residual.LARGE_TABLES_TREES).fit(features, target)
    errors = [
        np.abs(model.predict(features) - 0.3 * features[:, 0])[~slow].mean() for model in (operator, weighed_alike)
    ]
    assert errors[0] < 0.5 * errors[1]
    assert len(operator.trees) == residual.LARGE_TABLES_TREES["max_iter"]
    alike = fit_residual(features, target, is_one_device=True, some_slowed=False)
    assert alike.predict(features) == pytest.approx(weighed_alike.predict(features), abs=1e-5 * len(alike.trees))
    collective = fit_residual(features, target, is_one_device=True, is_collective=True)
    assert len(collective.trees) == residual.NUM_TREES, "no clock decides a collective's time"


@pytest.mark.parametrize(("name", "shape"), [("flash_attention", (1, 512, 8, 64, 1)), ("gelu", (4096, 1024))])
def test_only_attention_has_a_softmax(name: str, shape: tuple[int, ...]) -> None:
    measured = Row(catalogue()[name], name, Direction.FORWARD, shape, 1.0)
    assert to_samples([measured], SMS, [name]).has_softmax is (name == "flash_attention")


def test_too_few_rows_get_their_median_only() -> None:
    found = fit_residual(np.ones((5, 2)), np.array([0.1, 0.2, 0.3, 0.4, 9.0]))
    assert (found.baseline, found.trees) == (0.3, [])


def test_features_of_many_rows_are_those_of_each() -> None:
    measured = rows()
    samples = to_samples(measured, SMS, ["gelu"])
    fitted = fit(samples)
    whole = full_features(samples, fitted.physics)
    for i in (0, 17, len(measured) - 1):
        row = measured[i]
        features = residual_features(
            row.operator, row.shape, samples.terms[i].tolist(), fitted.physics.coefficients.tolist(), ["gelu"], SMS
        )
        assert whole[i].tolist() == pytest.approx(features)


def test_no_shape_lies_on_both_sides_of_a_split() -> None:
    repeated = rows() * 3
    samples = to_samples(repeated, SMS, ["gelu"])
    held = hold_out(samples, per_table=False)
    assert len(np.unique(samples.group)) == len(rows())
    # Repeated rows of one shape get one answer, from the fit that saw none of them.
    assert (np.ptp(held.us.reshape(3, -1), axis=0) == 0.0).all()
    assert np.abs(held.us / samples.us - 1.0).mean() < 0.03
    assert samples.work[held.largest].min() > samples.work[~held.largest].max()


def test_interval_quantiles_are_corrected_for_few_errors() -> None:
    assert upper_quantile(np.arange(1.0, 100.0), 0.95) == 95.0
    assert upper_quantile(np.arange(1.0, 6.0), 0.95) == 5.0


def test_interval_covers_what_it_promises() -> None:
    rng = np.random.default_rng(2)
    interval = calibrate(rng.normal(0.0, 0.05, 2000), [(rng.normal(0.0, 0.1, 500), np.full(500, 0.3))])
    fresh = rng.normal(0.0, 0.05, 5000)
    assert 0.88 < covered(interval, fresh, np.zeros(5000)).mean() < 0.92
    further = rng.normal(0.0, 0.1, 5000)
    assert 0.93 < covered(interval, further, np.full(5000, 0.3)).mean() < 0.97  # OUTSIDE_COVERAGE leaves a margin
    assert covered(interval, further, np.full(5000, 0.6)).mean() > 0.99
