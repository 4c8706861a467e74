"""A linear layer's backward pass as its two products, and a measured one that constant gradients made faster."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.gradient_products import (
    ConstantGradients,
    GradientProducts,
    each,
    with_gradients,
)
from predictor.core.costs.operator import Direction, Operator, Shape
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.costs.regressors import Outside
from predictor.core.costs.tiles import TILES, tile_features
from predictor.core.predict.system import load_system

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
FFN_UP, GELU = catalogue()["ffn_up"], catalogue()["gelu"]
SHAPE = (4096, 1024, 8192)


@dataclass(frozen=True)
class PerFlop:
    """A regressor that takes so many microseconds per 10⁹ FLOP."""

    us: float

    def answer(self, operator: Operator, direction: Direction, shape: Shape) -> Cost:
        us = self.us * operator.work(shape, direction, 1).flops / 1e9
        return Cost(us, 0.9 * us, 1.1 * us, Source.INTERPOLATED)

    def outside(self, operator: Operator, direction: Direction, shape: Shape) -> Outside | None:
        return Outside("k", shape[1] / 4096) if shape[1] > 4096 else None

    def widest(self, operator: Operator, shape: Shape) -> float:
        return self.us


def test_the_products_are_the_gradients_of_input_and_weight() -> None:
    m, k, n = SHAPE
    assert FFN_UP.gradient_products is not None
    assert FFN_UP.gradient_products(SHAPE) == ((m, n, k), (k, m, n))
    forward, backward = (FFN_UP.work(SHAPE, direction, 108) for direction in (FORWARD, BACKWARD))
    parts = [FFN_UP.work(part, FORWARD, 108) for part in FFN_UP.gradient_products(SHAPE)]
    assert parts[0] + parts[1] == backward
    assert backward.flops == 2 * forward.flops


def test_a_backward_pass_without_a_table_takes_two_products() -> None:
    regressors = with_gradients(FFN_UP, {FORWARD: PerFlop(2.0)}, constant_gradients=False)
    backward = regressors[BACKWARD]
    assert backward.answer(FFN_UP, BACKWARD, SHAPE).us == pytest.approx(
        2.0 * PerFlop(2.0).answer(FFN_UP, FORWARD, SHAPE).us
    )
    reach = backward.outside(FFN_UP, BACKWARD, SHAPE)
    assert reach is not None
    assert reach.factor == 2.0, "the gradient of the input sums over n"
    assert with_gradients(GELU, {FORWARD: PerFlop(2.0)}, constant_gradients=True) == {FORWARD: PerFlop(2.0)}


@pytest.mark.parametrize(("measured", "expected"), [(1.0, sqrt(2.0)), (3.0, 3.0)])
def test_constant_gradients_are_one_bound_and_the_forward_rate_the_other(measured: float, expected: float) -> None:
    tables = {FORWARD: PerFlop(2.0), BACKWARD: PerFlop(measured)}
    held = with_gradients(FFN_UP, tables, constant_gradients=True)[BACKWARD]
    answer = held.answer(FFN_UP, BACKWARD, SHAPE)
    assert answer.us == pytest.approx(PerFlop(expected).answer(FFN_UP, BACKWARD, SHAPE).us)
    assert answer.low_us == PerFlop(measured).answer(FFN_UP, BACKWARD, SHAPE).low_us
    assert answer.high_us == PerFlop(max(measured, 2.0)).answer(FFN_UP, BACKWARD, SHAPE).high_us
    assert held.widest(FFN_UP, SHAPE) == max(2.0, measured)
    assert with_gradients(FFN_UP, tables, constant_gradients=False) == tables


def test_a_change_reaches_every_part() -> None:
    held = ConstantGradients(PerFlop(1.0), GradientProducts(PerFlop(2.0)))
    changed = each(held, lambda part: PerFlop(part.widest(FFN_UP, SHAPE) + 1.0))
    assert changed == ConstantGradients(PerFlop(2.0), GradientProducts(PerFlop(3.0)))
    assert each(PerFlop(1.0), lambda part: part) == PerFlop(1.0)


def test_bf16_and_fp16_share_a_table() -> None:
    costs = [
        open_system(REGRESSORS_FOLDER / "H100", precision).cost(FFN_UP, direction, (8192, 4096, 8192))
        for precision in ("bf16", "fp16")
        for direction in (FORWARD, BACKWARD)
    ]
    assert costs[:2] == costs[2:]
    assert {cost.source for cost in costs} == {Source.INTERPOLATED}
    assert costs[1].us == pytest.approx(2.0 * costs[0].us, rel=0.1)


@pytest.mark.parametrize("name", ["Perlmutter", "Vista"])
def test_published_backward_passes_are_slower_than_with_constant_gradients(name: str) -> None:
    system = PublishedSystem(REGRESSORS_FOLDER / name, "fp16")
    shape = (16384, 8192, 8192)
    held = system.regressor(FFN_UP, BACKWARD)
    assert isinstance(held, ConstantGradients)
    tabled = held.measured.answer(FFN_UP, BACKWARD, shape)
    assert log(held.answer(FFN_UP, BACKWARD, shape).us / tabled.us) > 0.02
    assert load_system(name, precision="fp16").cost("ffn_up", shape, "backward") == tabled, "a single call is a row's"


def test_tile_features_tell_whole_tiles_and_waves() -> None:
    whole = tile_features((128 * 108, 4096, 256), 108)
    ragged = tile_features((128 * 108 + 1, 4096, 256), 108)
    assert len(whole) == len(ragged) == 4 + 18 + 3 + len(TILES) + 2
    assert whole[-2] == 1.0
    assert ragged[-2] < 1.0
    assert ragged[22] == 0.0, "an odd number of tokens has no power of two as a divisor"
