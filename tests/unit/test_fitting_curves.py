"""The line through a collective's residual follows steps that physics lacks, forgives a bad row, and ends level."""

from __future__ import annotations

import numpy as np
import pytest

from fitting.curves import CURVE_SHARE, OCTAVE, evaluate, fit_curve, fit_curves, rest_of
from fitting.residual import Residual
from predictor.costs.regressors import TREE_SIZE, Curve

SIZES = np.arange(8, 28) * OCTAVE


def test_the_line_is_linear_between_its_knots_and_level_beyond() -> None:
    curve = Curve(low=1.0, step=2.0, values=(0.0, 1.0, -1.0))
    assert [curve.at(x) for x in (-5.0, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0)] == pytest.approx([0, 0, 0.5, 1, 0, -1, -1])


def test_a_jump_between_protocols_is_followed() -> None:
    jump = np.where(np.arange(len(SIZES)) > 10, 0.6, 0.0)
    curve = fit_curve(SIZES, jump, share=1.0)
    found = np.array([curve.at(x) for x in SIZES.tolist()])
    assert np.abs(found - jump).max() < 0.2
    assert np.median(np.abs(found - jump)) < 0.02


def test_one_time_that_is_far_too_long_moves_the_line_little() -> None:
    wrong = np.zeros(len(SIZES))
    wrong[7] = 1.0
    curve = fit_curve(SIZES, wrong, share=1.0)
    assert abs(curve.at(float(SIZES[5]))) < 0.05
    assert abs(curve.at(float(SIZES[7]))) < 0.5


def test_every_topology_has_a_line_of_its_own() -> None:
    x, part = np.concatenate([SIZES, SIZES]), np.repeat([0, 1], len(SIZES))
    curves = fit_curves(x, np.where(part == 1, 0.3, -0.2), part)
    values = evaluate(curves, x, part) / CURVE_SHARE
    assert values[part == 0] == pytest.approx(-0.2, abs=0.01)
    assert values[part == 1] == pytest.approx(0.3, abs=0.01)
    assert not evaluate(curves, x, np.full(len(x), 7)).any()


def test_trees_keep_the_rest() -> None:
    tree = (*range(TREE_SIZE - 8), *(1.0,) * 8)
    rest = rest_of(Residual(0.5, [tree]))
    assert rest.baseline == pytest.approx(0.5 * (1.0 - CURVE_SHARE))
    assert rest.trees[0][: TREE_SIZE - 8] == tree[: TREE_SIZE - 8]
    assert rest.trees[0][-1] == pytest.approx(1.0 - CURVE_SHARE)
