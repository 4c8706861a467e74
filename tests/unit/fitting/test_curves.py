"""The line through a collective's residual follows steps that physics lacks, forgives a bad row, and ends level."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from fitting.curves import CURVE_SHARE, OCTAVE, evaluate, fit_curve, rest_of, split_residual
from fitting.residual import Residual
from predictor.core.costs.collectives import COLLECTIVES
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.regressors import TREE_SIZE, Curve, DirectionModel, DirectionRegressor, Interval

SIZES = np.arange(8.0, 28.0) * OCTAVE


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
    residual, curves = split_residual(Residual(0.1, []), x, np.where(part == 1, 0.3, -0.2), part)
    assert residual.baseline == 0.0, "without trees the lines say everything"
    values = evaluate(curves, x, part)
    assert values[part == 0] == pytest.approx(-0.2, abs=0.01)
    assert values[part == 1] == pytest.approx(0.3, abs=0.01)
    assert not evaluate(curves, x, np.full(len(x), 7)).any()


def test_trees_keep_the_rest() -> None:
    tree = (*range(TREE_SIZE - 8), *(1.0,) * 8)
    rest = rest_of(Residual(0.5, [tree]), 1.0 - CURVE_SHARE)
    assert rest.baseline == pytest.approx(0.5 * (1.0 - CURVE_SHARE))
    assert rest.trees[0][: TREE_SIZE - 8] == tree[: TREE_SIZE - 8]
    assert rest.trees[0][-1] == pytest.approx(1.0 - CURVE_SHARE)


def collective(topologies: list[tuple[int, int]], interval: Interval | None) -> DirectionRegressor:
    """A gather of 1 µs and 1 ns a byte, whose four GPUs take twice that."""
    inside = Interval(inside=(-0.1, 0.1), outside=0.9, outside_distance=0.5)
    width = 2 * 3 + 5 + 8
    model = DirectionModel(
        physics=(1.0, 0.0, 1e-3, 0.0, 0.0, 0.0, 0.0, 0.0), overlapped=False, hull_low=(0.0, 0.69, 1.0, 0.0, 0.0),
        hull_high=(30.0, 0.7, 1.7, 0.0, 40.0), feature_low=(0.0,) * width, feature_high=(1.0,) * width, baseline=0.0,
        trees=(), topologies=tuple(topologies), interval=inside, origin="measured", rows=40, unseen_in_node=interval,
        curves={"1x2": Curve(low=1, step=1, values=(0, 0)), "1x4": Curve(low=1, step=1, values=(log(2), log(2)))},
    )  # fmt: skip
    return DirectionRegressor(model, ("all_gather",), 1)


def test_an_unmeasured_group_takes_the_residual_of_the_nearest_and_an_interval_of_its_own() -> None:
    gather, forward = COLLECTIVES["all_gather"], Direction.FORWARD
    unseen = Interval(inside=(-0.2, 0.2), outside=0.2, outside_distance=0.05)
    regressor = collective([(1, 2), (1, 4)], unseen)
    cost = regressor.answer(gather, forward, (1000, 1, 8))
    assert cost.us == pytest.approx(2.0 * (1.0 + 7.0))
    assert cost.high_us / cost.us == pytest.approx(exp(0.2))
    assert cost.source is Source.EXTRAPOLATED
    alone = collective([(1, 2), (1, 4)], None).answer(gather, forward, (1000, 1, 8))
    assert alone.us == pytest.approx(8.0)
    assert alone.high_us / alone.us == pytest.approx(exp(0.9))
    large = regressor.answer(gather, forward, (2**50, 1, 8))
    assert large.high_us / large.us > exp(0.9), "beyond the measured sizes it is the interval of that"
    between = regressor.answer(gather, forward, (1000, 2, 4))
    assert between.high_us / between.us == pytest.approx(exp(0.9)), "links inside a node say nothing of the network"
