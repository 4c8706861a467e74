"""No product that was not measured runs faster than the GPU's memory and its tensor cores allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.costs.bounds import possible
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, in_precision
from predictor.core.costs.sustained import in_training
from predictor.core.costs.work import PRECISION_BYTES
from predictor.core.plan.loading import open_for

PUBLISHED = Path(__file__).resolve().parents[4] / "regressors"
THIN = ((131072, 7168, 8), (8, 16384, 53248), (32, 53248, 16384))


@pytest.mark.parametrize("shape", THIN)
@pytest.mark.parametrize(
    ("name", "low"),
    [("A100_SXM", ""), ("H200", ""), ("H200", "fp8"), ("B200", ""), ("B200", "nvfp4"), ("B300", "mxfp8"), ("L40S", "")],
)
def test_a_thin_product_moves_its_matrices_no_faster_than_memory(
    name: str, low: str, shape: tuple[int, int, int]
) -> None:
    system = in_training(open_for(PUBLISHED / name, "bf16", tf32=False))
    operator, gpu = catalogue()["ffn_up"], system.hardware.gpu
    operator = in_precision(operator, low) if low else operator
    operand = PRECISION_BYTES[low] if low else 2.0
    for direction in Direction:
        cost = system.cost(operator, direction, shape)
        products = (shape,) if direction is Direction.FORWARD else operator.gradient_products(shape)  # type: ignore[misc]
        beyond_cache = sum(
            max(0.0, operand * (m * k + k * n) + 2.0 * m * n - gpu.l2_cache_mb.value * 1e6) for m, k, n in products
        )
        assert cost.source > Source.INTERPOLATED
        assert beyond_cache / (cost.low_us * 1e3) <= gpu.memory_bandwidth_gb_per_s.value * (1 + 1e-9)
        assert cost.low_us <= cost.us <= cost.high_us


def test_each_product_of_a_backward_pass_needs_its_own_bytes() -> None:
    system, operator = open_for(PUBLISHED / "H200", "bf16", tf32=False), catalogue()["ffn_up"]
    forward = system.cost(operator, Direction.FORWARD, THIN[0])
    assert system.cost(operator, Direction.BACKWARD, THIN[0]).us == pytest.approx(2.0 * forward.us, rel=0.05)


def test_a_measured_time_stays_and_another_is_no_shorter_than_possible() -> None:
    measured, outside = (Cost(10.0, 8.0, 15.0, source) for source in (Source.INTERPOLATED, Source.EXTRAPOLATED))
    assert possible(measured, 20.0) == measured
    assert possible(outside, 8.0) == outside
    assert possible(outside, 9.0) == Cost(10.0, 9.0, 15.0, Source.EXTRAPOLATED)
    assert possible(outside, 20.0) == Cost(20.0, 20.0, 30.0, Source.EXTRAPOLATED)
