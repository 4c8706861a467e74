"""A donor's cost is no shorter than the call's own bytes, FLOPs and kernels take."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.stand_ins import LEAST_KERNEL_US, bounded
from predictor.core.costs.variants import in_graphs
from predictor.core.plan.loading import open_for

PUBLISHED = Path(__file__).resolve().parents[4] / "regressors"
SYSTEMS = ("Selene", "V100", "H100", "H200", "B200", "GB200", "MI300X", "Vista", "Perlmutter")
THIN = ((65536, 13, 1024), (65536, 1024, 1), (65536, 16, 512), (16384, 1024, 1024))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_thin_product_moves_its_matrices_no_faster_than_memory(
    name: str, precision: str, direction: Direction
) -> None:
    system, operator = open_for(PUBLISHED / name, precision, tf32=False), catalogue()["mlp_linear"]
    gpu = system.hardware.gpu
    for shape in THIN:
        work, cost = operator.work(shape, direction, 108), system.cost(operator, direction, shape)
        size_bytes = work.size_bytes * operator.byte_scale(precision)
        assert size_bytes / (cost.us * 1e3) <= gpu.memory_bandwidth_gb_per_s.value
        uncached = size_bytes - gpu.l2_cache_mb.value * 1e6
        assert uncached / (cost.low_us * 1e3) <= gpu.memory_bandwidth_gb_per_s.value * (1 + 1e-9)
        assert cost.low_us <= cost.us <= cost.high_us


def test_a_product_in_fp32_is_held_to_the_peak_of_fp32() -> None:
    system, operator = open_for(PUBLISHED / "Selene", "fp32", tf32=False), catalogue()["mlp_linear"]
    shape = (65536, 4096, 4096)
    work, cost = operator.work(shape, Direction.FORWARD, 108), system.cost(operator, Direction.FORWARD, shape)
    assert work.flops / (cost.low_us * 1e6) <= 19.5 * (1 + 1e-9)  # A100's data sheet, fp32 without tensor cores


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_kernel_has_a_least_duration(name: str) -> None:
    system = open_for(PUBLISHED / name, "fp16", tf32=False)
    graphs = in_graphs(system)
    for operator_name, shape in (("embedding_bag", (64, 64, 64, 16)), ("embedding_update", (64, 64, 16, 2))):
        operator = catalogue()[operator_name]
        least = LEAST_KERNEL_US * operator.launches[0]
        assert system.cost(operator, Direction.FORWARD, shape).us >= least
        assert LEAST_KERNEL_US <= graphs.cost(operator, Direction.FORWARD, shape).us <= 2 * LEAST_KERNEL_US


def test_a_bound_moves_the_interval_along() -> None:
    cost = Cost(10.0, 5.0, 20.0, Source.EXTRAPOLATED)
    assert bounded(cost, 4.0, 8.0) == cost
    assert bounded(cost, 7.0, 8.0) == Cost(10.0, 7.0, 20.0, Source.EXTRAPOLATED)
    assert bounded(cost, 7.0, 15.0) == Cost(15.0, 7.0, 30.0, Source.EXTRAPOLATED)
    assert bounded(cost, 12.0, 12.0) == Cost(12.0, 12.0, 24.0, Source.EXTRAPOLATED)
