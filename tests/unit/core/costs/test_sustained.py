"""Products in a step run at the clock that a GPU keeps up; single calls as in the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.operator import Direction, in_precision
from predictor.core.costs.published import open_system, with_hardware
from predictor.core.costs.slowdown import sustained
from predictor.core.costs.slowest import slowest_of
from predictor.core.costs.sustained import full_clock, in_training
from predictor.core.hardware.hardware import Quantity
from predictor.core.hardware.power import clock_log_error, clock_ratio
from predictor.core.plan.loading import open_for, prepare

FORWARD = Direction.FORWARD
LARGE = (16384, 8192, 28672)
H100 = open_system(REGRESSORS_FOLDER / "H100", "bf16")
SHARES = full_clock(H100.hardware.gpu, "bf16")


def test_large_products_of_a_step_take_longer_than_single_calls() -> None:
    step, product = in_training(H100), catalogue()["ffn_up"]
    for direction in Direction:
        single = H100.cost(product, direction, LARGE)
        reached = product.work(LARGE, direction, 132).flops / single.us / 1e6 / H100.peak_of(product)
        longer = step.cost(product, direction, LARGE).us / single.us
        assert longer == pytest.approx((reached / SHARES[""]) ** 0.4)
        assert 1.1 < longer < 1.25


@pytest.mark.parametrize(("name", "burst", "settled"), [("H200", 0.84, (699, 752)), ("B300", 0.827, (1400, 1700))])
def test_the_best_products_settle_where_busy_nodes_do(name: str, burst: float, settled: tuple[int, int]) -> None:
    # H200: Bekman, ml-engineering, MSMF, all eight GPUs busy; B300: a range by the B200s whose power is stated.
    gpu = open_system(REGRESSORS_FOLDER / name, "bf16").hardware.gpu
    kept = sustained(Cost(1.0, 1.0, 1.0, Source.MEASURED), burst, full_clock(gpu, "bf16")[""]).us
    assert 0.98 * settled[0] < gpu.peak_tflop_per_s["bf16"].value * burst / kept < settled[1]


def test_streams_keep_their_cost() -> None:
    shape = (8192, 8192)
    added = catalogue()["residual_add"]
    assert in_training(H100).cost(added, FORWARD, shape) == H100.cost(added, FORWARD, shape)


def test_only_what_draws_more_than_the_limit_is_slowed() -> None:
    cost = Cost(100.0, 90.0, 110.0, Source.MEASURED)
    assert sustained(cost, 0.0, 0.5) == cost
    assert sustained(cost, 0.5, 0.5).us == 100.0, "it just reaches the limit"
    assert sustained(cost, 0.75, 0.5).us == pytest.approx(100.0 * 1.5**0.4)
    assert sustained(cost, 0.75, 0.5).low_us == 90.0


def test_a_product_that_draws_less_than_a_power_limit_loses_no_clock() -> None:
    # Costs and rates under half of the switching power are those of a product that would draw all of it.
    clock = 0.5**0.4
    cost = Cost(100.0 / clock, 90.0 / clock, 110.0 / clock, Source.MEASURED)

    def under_limit(reached: float) -> float:
        return sustained(cost, reached * clock, 0.6 * clock, limited=0.5).us

    assert under_limit(0.1) == pytest.approx(100.0)
    assert under_limit(0.3) == pytest.approx(100.0), "it draws half of the power, which is the limit"
    assert under_limit(0.45) == pytest.approx(100.0 * (0.45 / 0.3) ** 0.4)
    assert under_limit(0.6) == pytest.approx(100.0 / clock), "it draws all of the board's power"
    assert under_limit(0.9) == pytest.approx(100.0 / clock * 1.5**0.4)


def test_what_is_not_known_of_a_limit_grows_below_the_measured_powers() -> None:
    def width(watts: float) -> float:
        limit = Quantity(value=watts, source="a test")
        return clock_log_error(H100.hardware.gpu.model_copy(update={"power_limit_w": limit}))

    assert width(700.0) == 0.0
    assert width(600.0) < width(500.0) < width(350.0) < width(250.0) < width(150.0)
    assert width(150.0) - width(250.0) > 2 * (width(350.0) - width(500.0)), "where the voltage may fall no further"


def test_a_power_limit_slows_products_of_a_step_by_its_clock() -> None:
    gpu = H100.hardware.gpu.model_copy(update={"power_limit_w": Quantity(value=500.0, source="a test")})
    limited = with_hardware(H100, H100.hardware.model_copy(update={"gpu": gpu}))
    product = catalogue()["ffn_up"]
    ratio = limited.cost(product, FORWARD, LARGE).us / H100.cost(product, FORWARD, LARGE).us
    assert ratio == pytest.approx(1.0 / clock_ratio(gpu), rel=0.02)
    assert in_training(limited).cost(product, FORWARD, LARGE).us > in_training(H100).cost(product, FORWARD, LARGE).us


def test_a_gpu_without_a_sustained_rate_is_unchanged() -> None:
    other = open_system(REGRESSORS_FOLDER / "MI300X", "fp16")
    assert in_training(other) is other


def test_steps_are_timed_with_sustained_rates() -> None:
    model = {"num_layers": 2, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 2048}
    training = {"micro_batch_size": 1, "num_micro_batches": 1, "precision": "bf16"}
    loaded = prepare({"system": "H100", "model": model, "training": training}, Path.cwd())
    assert loaded.system.slowdown.full_clock == SHARES


def test_a_system_in_fp32_stays_one_under_load() -> None:
    system = open_for(REGRESSORS_FOLDER / "H100", "fp32", tf32=False)
    product, loaded = catalogue()["ffn_up"], slowest_of(in_training(system), 64)
    alone = system.cost(product, FORWARD, LARGE)
    assert loaded.cost(product, FORWARD, LARGE).us > alone.us > 5 * H100.cost(product, FORWARD, LARGE).us
    assert system.cost(product, FORWARD, LARGE) == alone


def test_a_gpu_is_no_slower_than_its_chip_with_less_power() -> None:
    """GB200's table holds large products in bf16 that a power limit slowed down."""
    single, other = (open_system(REGRESSORS_FOLDER / name, "bf16") for name in ("GB200", "B200"))
    step, others = in_training(single), in_training(other)
    product = catalogue()["ffn_up"]
    for operator in (product, in_precision(product, "fp8")):
        for direction in Direction:
            assert single.cost(operator, direction, LARGE).us > 1.2 * other.cost(operator, direction, LARGE).us
            assert step.cost(operator, direction, LARGE).us == pytest.approx(others.cost(operator, direction, LARGE).us)
    small = (2048, 4096, 4096)
    assert step.cost(product, FORWARD, small).us < others.cost(product, FORWARD, small).us
    assert single.cost(product, FORWARD, LARGE) == open_system(REGRESSORS_FOLDER / "GB200", "bf16").cost(
        product, FORWARD, LARGE
    )


def test_less_power_still_slows_such_a_gpu_down() -> None:
    system = open_system(REGRESSORS_FOLDER / "GB200", "bf16")
    gpu = system.hardware.gpu.model_copy(update={"power_limit_w": Quantity(value=900.0, source="a test")})
    limited = with_hardware(system, system.hardware.model_copy(update={"gpu": gpu}))
    product = catalogue()["ffn_up"]
    assert (
        in_training(limited).cost(product, FORWARD, LARGE).us
        > 1.05 * in_training(system).cost(product, FORWARD, LARGE).us
    )


def test_a_system_that_measured_its_sustained_rate_keeps_its_own_products() -> None:
    system = open_system(REGRESSORS_FOLDER / "GB200", "bf16")
    measured = {"sustained_product_ratio": Quantity(value=1.0, source="a test")}
    gpu = system.hardware.gpu.model_copy(update=measured)
    own = with_hardware(system, system.hardware.model_copy(update={"gpu": gpu}))
    product = catalogue()["ffn_up"]
    assert in_training(own).cost(product, FORWARD, LARGE).us == system.cost(product, FORWARD, LARGE).us
