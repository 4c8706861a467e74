"""Products in a step run at the clock that a GPU keeps up; single calls as in the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.costs.catalogue import catalogue
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.load import sustained
from predictor.core.costs.operator import Direction, in_precision
from predictor.core.costs.published import open_system, with_hardware
from predictor.core.costs.slowest import slowest_of
from predictor.core.costs.sustained import in_training, sustained_ratio
from predictor.core.hardware.hardware import Quantity
from predictor.core.hardware.power import clock_ratio
from predictor.core.plan.loading import open_for, prepare

FORWARD = Direction.FORWARD
LARGE = (16384, 8192, 28672)
H100 = open_system(REGRESSORS_FOLDER / "H100", "bf16")
RATIO = sustained_ratio(H100.hardware.gpu, "bf16")


def test_large_products_of_a_step_take_longer_than_single_calls() -> None:
    step = in_training(H100)
    assert 0.7 < RATIO < 1.0
    for direction in Direction:
        single = H100.cost(catalogue()["ffn_up"], direction, LARGE)
        assert step.cost(catalogue()["ffn_up"], direction, LARGE).us == pytest.approx(single.us / RATIO, rel=0.03)


def test_streams_keep_their_cost() -> None:
    shape = (8192, 8192)
    added = catalogue()["residual_add"]
    assert in_training(H100).cost(added, FORWARD, shape) == H100.cost(added, FORWARD, shape)


def test_only_the_tensor_cores_share_is_slowed() -> None:
    cost = Cost(100.0, 90.0, 110.0, Source.MEASURED)
    assert sustained(cost, 0.0, 0.8) == cost
    assert sustained(cost, 1.0, 0.8).us == pytest.approx(125.0)
    assert sustained(cost, 0.5, 0.8).us == pytest.approx(112.5)


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
    assert loaded.system.load.sustained_ratio == RATIO


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
