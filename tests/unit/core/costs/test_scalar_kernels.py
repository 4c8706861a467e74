"""Element-wise kernels that load one number at a time, and the loss: by the clock, never faster than their bytes."""

from __future__ import annotations

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.cost import Source
from predictor.core.costs.operator import Direction
from predictor.core.costs.published import PublishedSystem, open_system
from predictor.core.costs.scalar_kernels import LOG_ERROR, OPERATOR, ScalarKernelRegressor, scalar_kernels_of
from predictor.core.workload.losses import fused_loss
from tests.unit.core.workload.test_low_precision import run_of

FORWARD = Direction.FORWARD


def published(name: str) -> PublishedSystem:
    return open_system(REGRESSORS_FOLDER / name, "bf16")


@pytest.mark.parametrize(
    ("system", "elements", "measured_us"),
    [("A100_SXM", 67_108_864, 362.46), ("B200", 1024**3, 2774.0)],
)
def test_sources_are_met(system: str, elements: int, measured_us: float) -> None:
    cost = published(system).cost(OPERATOR, FORWARD, (elements, 6 * elements))
    assert cost.us == pytest.approx(measured_us, rel=0.01)
    assert cost.low_us < cost.us < cost.high_us
    assert cost.source is Source.ANALYTIC


def test_on_blackwell_such_a_kernel_takes_much_longer_than_its_bytes_and_on_ampere_hardly() -> None:
    elements = 10**8
    over_stream = {
        name: published(name).cost(OPERATOR, FORWARD, (elements, 6 * elements)).us
        / (6 * elements / published(name).hardware.gpu.memory_bandwidth_gb_per_s.value / 1e3)
        for name in ("A100_SXM", "H100", "B200")
    }
    assert 1.5 < over_stream["A100_SXM"] < 2.0  # of the data sheet's bandwidth, which no kernel reaches
    assert over_stream["A100_SXM"] < over_stream["H100"] < over_stream["B200"]
    assert over_stream["B200"] > 3.0


def test_many_bytes_per_element_take_their_time_over_the_memory() -> None:
    kernels = ScalarKernelRegressor(ps_per_element=1.0, gb_per_s=1000.0)
    cost = kernels.answer(OPERATOR, FORWARD, (1000, 10**6))
    assert cost.us == cost.low_us == pytest.approx(1.0)
    assert kernels.widest(OPERATOR, (1, 1)) == LOG_ERROR
    assert kernels.outside(OPERATOR, FORWARD, (1, 1)) is not None


def test_a_gpu_of_another_kind_streams_the_bytes() -> None:
    other = open_system(REGRESSORS_FOLDER / "MI300X", "fp16")
    assert scalar_kernels_of(other.hardware.gpu) is None
    size_bytes = 6 * 10**9
    at_peak_us = size_bytes / (other.hardware.gpu.memory_bandwidth_gb_per_s.value * 1e3)
    assert other.cost(OPERATOR, FORWARD, (10**9, size_bytes)).us == pytest.approx(at_peak_us / 0.85, rel=0.15)


def test_transformer_engines_loss_follows_the_clock_and_a_compiled_one_the_memory() -> None:
    """B200 reads and writes 16-bit logits twice in either direction, at 2.4 TB/s."""
    run = run_of()
    call = run.call()
    passes = 2 * 2 * call.tokens * call.vocab_per_rank
    system = published("B200")

    def tb_per_s(compiled: bool) -> float:
        task = fused_loss(run.model, call, Direction.FORWARD, compiled)
        return passes / 1e6 / (system.cost(task.operator, task.direction, task.shape).us * task.times)

    assert tb_per_s(compiled=False) == pytest.approx(0.2795 * 8000 * 1024**3 / 1e12, rel=0.01)
    assert tb_per_s(compiled=True) > 6.0
