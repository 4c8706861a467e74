"""What a training costs: steps, hours, energy and price, from the time of one step."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from statistics import mean

import pytest

from predictor.__main__ import main
from predictor.base.bundled import REGRESSORS_FOLDER
from predictor.configuration.loading import prepare, read_config
from predictor.configuration.sections import BudgetSection
from predictor.costs.cost import Cost, Source
from predictor.costs.hardware import Quantity
from predictor.costs.published import open_system
from predictor.interface.prediction import predict
from predictor.report.budget import bill
from predictor.report.goodput import expected_share
from predictor.report.text import span
from tests.conftest import SHARED
from tests.unit.examples import full_form, write

STEP = Cost(2e6, 1e6, 4e6, Source.INTERPOLATED)


def test_a_bill_is_steps_times_their_time(tmp_path: Path) -> None:
    gpu = prepare(*read_config(write(full_form(), tmp_path / "c.yml"))).system.hardware.gpu
    budget = BudgetSection(train_tokens=1e9, price_per_gpu_hour=2.0, power_per_gpu_w=500.0)
    found = bill(STEP, num_gpus=8, tokens_per_step=3_000_000, gpu=gpu, budget=budget)
    assert found.steps == 334  # the last step is a whole one too
    assert found.hours == pytest.approx(334 * 2 / 3600)
    assert (found.low_hours, found.high_hours) == pytest.approx((found.hours / 2, found.hours * 2))
    assert found.gpu_hours == pytest.approx(8 * found.hours)
    assert found.energy_kwh == pytest.approx(found.gpu_hours * 0.5)
    assert found.price == pytest.approx(found.gpu_hours * 2)
    assert found.power_source == "the configuration"


def test_without_a_power_it_is_the_board_s_limit_and_a_share_of_the_node(tmp_path: Path) -> None:
    gpu = prepare(*read_config(write(full_form(), tmp_path / "c.yml"))).system.hardware.gpu
    found = bill(STEP, 1, 1, gpu, BudgetSection())
    assert found.power_per_gpu_w == 400 + 250  # an A100's limit, and what is assumed where no node was measured
    assert found.energy_kwh == pytest.approx(found.gpu_hours * 0.65)
    assert found.power_source is not None
    assert "assumed" in found.power_source
    assert "upper bound" not in found.power_source
    limited = gpu.model_copy(update={"power_limit_w": Quantity(value=300.0, source="a test")})
    assert bill(STEP, 1, 1, limited, BudgetSection()).power_per_gpu_w == 300 + 250
    assert found.price is None
    unknown = bill(STEP, 1, 1, gpu.model_copy(update={"board_power_w": None}), BudgetSection())
    assert unknown.energy_kwh is None


NODES = SHARED / "operations" / "node_power.csv"


@pytest.mark.skipif(not NODES.is_file(), reason=f"no power of nodes: {NODES} is absent")
@pytest.mark.parametrize("name", ["H100", "B200"])
def test_nodes_that_trained_a_language_model_drew_what_is_billed(name: str) -> None:
    gpu = open_system(REGRESSORS_FOLDER / name, "bf16").hardware.gpu
    with NODES.open(encoding="utf-8") as file:
        drawn = [
            float(row["median_w"]) / 8
            for row in csv.DictReader(file)
            if name in row["system"] and row["benchmark"] == "llama2_70b_lora" and row["node"].startswith("node")
        ]
    assert bill(STEP, 1, 1, gpu, BudgetSection()).power_per_gpu_w == pytest.approx(mean(drawn), rel=0.01)


def test_report_and_json_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = full_form() | {"budget": {"train_tokens": 1e12, "price_per_gpu_hour": 1.5}}
    path = write(content, tmp_path / "c.yml")
    assert main([str(path)]) == 0
    assert "Budget" in capsys.readouterr().out
    assert main([str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"]["steps"] == -(-(10**12) // found["run"]["tokens_per_step"])
    assert found["budget"]["price"] == pytest.approx(found["budget"]["gpu_hours"] * 1.5)


@pytest.mark.parametrize(("key", "value"), [("train_tokens", 0), ("price_per_gpu_hour", -1), ("power_per_gpu_w", "x")])
def test_bad_budgets_are_one_line(key: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form() | {"budget": {key: value}}, tmp_path / "c.yml")
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert f"budget.{key}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("hours", "text"), [(0.0001, "360 ms"), (1.5, "1.5 h"), (47.0, "47 h"), (48.0, "2.0 days")])
def test_long_durations_read_well(hours: float, text: str) -> None:
    assert span(hours) == text


def test_goodput_falls_with_failures_and_the_optimal_interval_is_best() -> None:
    mtbf, checkpoint, restart = 3.0, 0.01, 1 / 6
    best = expected_share(math.sqrt(2 * checkpoint * mtbf), checkpoint, restart, mtbf)
    assert best > max(expected_share(interval, checkpoint, restart, mtbf) for interval in (0.05, 1.0, 3.0))
    # first order: checkpoint / interval + (interval / 2 + restart) / MTBF is lost. Young 1974.
    rare = expected_share(math.sqrt(2 * checkpoint * 300), checkpoint, restart, 300.0)
    assert 1 - rare == pytest.approx(0.01 / math.sqrt(6) + (math.sqrt(6) / 2 + restart) / 300, rel=0.02)


def test_a_training_has_a_goodput_and_a_step_has_none(tmp_path: Path) -> None:
    content = full_form() | {"budget": {"train_tokens": 1e12}}
    whole = predict(content).budget
    assert whole.goodput is not None
    assert whole.goodput.hours == pytest.approx(whole.hours / whole.goodput.share)
    assert 0.9 < whole.goodput.share < 1.0
    assert "goodput" in predict(content).text()
    often = predict(content | {"budget": {"train_tokens": 1e12, "mtbf_per_gpu_hours": 500.0}}).budget.goodput
    assert often is not None
    assert often.share < whole.goodput.share
    assert often.failures > 50 * whole.goodput.failures
    fixed = predict(content | {"budget": {"train_tokens": 1e12, "checkpoint_interval_minutes": 30.0}}).budget.goodput
    assert fixed is not None
    assert fixed.checkpoint_interval_hours == 0.5
    assert predict(full_form()).budget.goodput is None
