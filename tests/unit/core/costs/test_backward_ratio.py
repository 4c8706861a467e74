"""A kernel that was measured forward only takes its backward pass from the ratio that it states."""

from __future__ import annotations

from math import exp, hypot, log

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.operators.gated_delta_rule import BACKWARD_OVER_FORWARD, OVER_ROOFLINE, RATIO_LOG_ERROR
from predictor.core.costs.published import open_system
from predictor.core.costs.roofline import roofline

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
RULE, SCAN = catalogue()["gated_delta_rule"], catalogue()["ssd_scan"]
SHAPE = (1, 8192, 32, 128, 128, 64)


def test_backward_is_the_forward_pass_times_the_ratio_and_analytic() -> None:
    system = open_system(REGRESSORS_FOLDER / "H200", "bf16")
    forward, backward = (system.cost(RULE, direction, SHAPE) for direction in (FORWARD, BACKWARD))
    assert forward.source is Source.INTERPOLATED
    assert backward.source is Source.ANALYTIC
    assert backward.us == pytest.approx(BACKWARD_OVER_FORWARD * forward.us)
    width = hypot(log(forward.high_us / forward.us), RATIO_LOG_ERROR)
    assert backward.high_us == pytest.approx(backward.us * exp(width))


# Flash-linear-attention 0.5.1 on an H200, in a CUDA graph, of 32 value heads and 16 of keys, ms; another version than
# the table's. Source: QwenLM/FlashQLA at 6e5d2ea, benchmark/benchmark_results_H200.txt.
@pytest.mark.parametrize(
    ("length", "direction", "ms"),
    [(8192, FORWARD, 0.472), (32768, FORWARD, 1.890), (8192, BACKWARD, 1.444), (32768, BACKWARD, 5.697)],
)
def test_the_table_agrees_with_another_source(length: int, direction: Direction, ms: float) -> None:
    cost = open_system(REGRESSORS_FOLDER / "H200", "bf16").cost(RULE, direction, (1, length, 32, 128, 128, 64))
    assert cost.us / 1e3 == pytest.approx(ms, rel=0.35)


def test_a_scan_that_was_not_measured_follows_the_rule_that_was() -> None:
    system = open_system(REGRESSORS_FOLDER / "H100", "bf16")
    cost = system.cost(SCAN, FORWARD, (1, 8192, 64, 64, 128, 8, 256))
    assert cost.source is not Source.INTERPOLATED
    rule = system.cost(RULE, FORWARD, (1, 8192, 64, 128, 64, 64))
    assert 0.5 * rule.us < cost.us < 2.0 * rule.us


def test_without_any_table_a_rule_takes_a_multiple_of_its_roofline() -> None:
    work = RULE.work(SHAPE, FORWARD, 132)
    assert RULE.stand_in is not None
    donor = RULE.stand_in(SHAPE, FORWARD, 132)
    least = roofline(work.extras[0], work.size_bytes + work.extras[1], (32 * 128, 64, 64, 128), 0.0)
    assert (donor.operator, donor.shape) == (least.operator, least.shape)
    assert donor.times == pytest.approx(OVER_ROOFLINE * least.times)
    cost = open_system(REGRESSORS_FOLDER / "Vista", "fp16").cost(RULE, FORWARD, SHAPE)
    assert cost.source is Source.ANALYTIC


def test_the_products_of_a_rule_in_chunks_are_counted_by_hand() -> None:
    """Two chunks of 4 tokens, keys of 2 and values of 3 elements: each product as (rows, depth, columns)."""
    inside = [(4, 2, 4), (4, 2, 4), (4, 4, 3)]  # queries with keys, keys with keys, scores with values
    # The first chunk reads no state and the second leaves none: half of three products with a state a chunk.
    state = [(4, 2, 3)] * 3
    needed = sum(2.0 * a * b * c for a, b, c in 2 * inside + state)
    solved = sum(2.0 * a * b * c for a, b, c in 2 * [(4, 4, 2), (4, 4, 3)]) + 2 * 4**3  # both factors, and the inverse
    forward, backward = (RULE.work((1, 8, 1, 2, 3, 4), direction, 1) for direction in (FORWARD, BACKWARD))
    assert (forward.flops, forward.extras[0]) == (needed, needed + solved)
    again = 2 * 2.0 * 4 * 2 * 4  # keys with keys, of each chunk
    assert (backward.flops, backward.extras[0]) == (2 * needed, 2 * needed + 3 * solved + again)
    whole = RULE.work((1, 4, 1, 2, 3, 64), FORWARD, 1)  # a sequence within one chunk has no state
    assert whole.flops == sum(2.0 * a * b * c for a, b, c in inside)
