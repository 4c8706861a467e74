"""Products in a step run at the rate that they keep up; single calls as in the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.base.bundled import REGRESSORS_FOLDER
from predictor.configuration.loading import prepare
from predictor.costs.catalogue import catalogue
from predictor.costs.hardware import Quantity
from predictor.costs.operator import Direction, in_precision
from predictor.costs.power import clock_ratio
from predictor.costs.published import open_system, with_hardware
from predictor.costs.sustained import SustainedSystem, held, in_training, sustained_tflop_per_s

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
LARGE = (16384, 8192, 28672)
H100 = open_system(REGRESSORS_FOLDER / "H100", "bf16")


def rate(us: float, direction: Direction) -> float:
    return catalogue()["ffn_up"].work(LARGE, direction, 132).flops / us / 1e6


def test_no_product_of_a_step_is_faster_than_the_sustained_rate() -> None:
    step = in_training(H100)
    ceiling = sustained_tflop_per_s(H100)
    assert ceiling is not None
    for direction in Direction:
        cost = step.cost(catalogue()["ffn_up"], direction, LARGE)
        assert rate(cost.us, direction) <= ceiling * (1 + 1e-9)
        assert cost.low_us <= H100.cost(catalogue()["ffn_up"], direction, LARGE).us <= cost.us < cost.high_us


def test_other_operators_and_other_precisions_keep_their_cost() -> None:
    step = in_training(H100)
    for name, shape in (("residual_add", (8192, 8192)), ("flash_attention", (1, 4096, 32, 128, 1))):
        assert step.cost(catalogue()[name], FORWARD, shape) == H100.cost(catalogue()[name], FORWARD, shape)
    small = in_precision(catalogue()["ffn_up"], "fp8")
    assert step.cost(small, FORWARD, LARGE) == H100.cost(small, FORWARD, LARGE)


def test_a_power_limit_lowers_the_sustained_rate() -> None:
    limit = Quantity(value=500.0, source="a test")
    gpu = H100.hardware.gpu.model_copy(update={"power_limit_w": limit})
    limited = with_hardware(H100, H100.hardware.model_copy(update={"gpu": gpu}))
    at_500_w, at_700_w = sustained_tflop_per_s(limited), sustained_tflop_per_s(H100)
    assert at_500_w is not None
    assert at_700_w is not None
    assert at_500_w == pytest.approx(at_700_w * clock_ratio(gpu))


def test_a_gpu_without_a_sustained_rate_is_unchanged() -> None:
    other = open_system(REGRESSORS_FOLDER / "MI300X", "fp16")
    assert in_training(other) is other


def test_steps_are_timed_with_sustained_rates() -> None:
    model = {"num_layers": 2, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 2048}
    training = {"micro_batch_size": 1, "num_micro_batches": 1, "precision": "bf16"}
    loaded = prepare({"system": "H100", "model": model, "training": training}, Path.cwd())
    assert isinstance(loaded.system, SustainedSystem)


def test_a_slower_cost_is_kept() -> None:
    cost = H100.cost(catalogue()["ffn_up"], BACKWARD, LARGE)
    assert held(cost, cost.us / 2) is cost
