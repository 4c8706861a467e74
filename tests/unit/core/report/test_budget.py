"""What a training costs: steps, hours, energy and price, from the time of one step."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER
from predictor.core.base.quantities import span
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import open_system
from predictor.core.hardware.hardware import Quantity
from predictor.core.plan.loading import prepare, read_config
from predictor.core.predict.prediction import predict
from predictor.core.reliability.job import Job
from predictor.core.report.budget import bill
from predictor.core.report.goodput import Goodput, goodput, goodput_notes
from predictor.core.schema.sections import BudgetSection
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


def test_energy_has_a_price_and_carbon_by_the_hour(tmp_path: Path) -> None:
    gpu = prepare(*read_config(write(full_form(), tmp_path / "c.yml"))).system.hardware.gpu
    day = [0.1] * 12 + [0.3] * 12
    found = bill(STEP, 8, 1, gpu, BudgetSection.model_validate({"energy_price_per_kwh": day, "carbon_kg_per_kwh": 0.4}))
    assert found.energy_kwh is not None
    assert found.energy_price == pytest.approx(0.2 * found.energy_kwh)
    assert found.carbon_kg == pytest.approx(0.4 * found.energy_kwh)
    at_noon = BudgetSection.model_validate({"energy_price_per_kwh": day, "start_hour": 12.0})
    assert bill(STEP, 8, 1, gpu, at_noon).energy_price == pytest.approx(0.3 * found.energy_kwh)
    assert bill(STEP, 8, 1, gpu, BudgetSection()).energy_price is None
    unknown = gpu.model_copy(update={"board_power_w": None})
    assert bill(STEP, 8, 1, unknown, BudgetSection(carbon_kg_per_kwh=0.4)).carbon_kg is None


@pytest.mark.parametrize("value", [[0.1] * 23, [0.1] * 23 + [-1.0], -0.5])
def test_energy_of_another_day_is_refused(value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form() | {"budget": {"energy_price_per_kwh": value}}, tmp_path / "c.yml")
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert "budget.energy_price_per_kwh" in error
    assert error.count("\n") == 1


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
    found = bill(STEP, 1, 1, gpu, BudgetSection())
    assert found.power_per_gpu_w == pytest.approx(mean(drawn), rel=0.01)
    assert found.low_energy_kwh is not None
    assert found.high_energy_kwh is not None
    at_least_w, at_most_w = (
        1e3 * kwh / hours
        for kwh, hours in ((found.low_energy_kwh, found.low_hours), (found.high_energy_kwh, found.high_hours))
    )
    assert at_least_w <= min(drawn) + 1.0
    assert max(drawn) - 1.0 <= at_most_w


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


def among_failures(hours: float = 1000.0, **budget: Any) -> Goodput:
    """Return the goodput of a model of 405B parameters on 16,384 H100s, in steps of 7 s."""
    hardware = open_system(REGRESSORS_FOLDER / "H100", "bf16").hardware
    job = Job(16_384, 8, hours, gpu_bytes=6.6e9, whole_bytes=14 * 405e9, step_s=7.0)
    return goodput(job, hardware, BudgetSection(train_tokens=1e12, **budget))


def test_what_is_saved_and_how_often_follows_from_storage_and_steps() -> None:
    quick, slow = among_failures(), among_failures(storage_gb_per_s=1.0)
    assert quick.write_seconds == pytest.approx(14 * 405e9 / 2e12)  # 2 TB/s beside 16,384 GPUs
    assert slow.write_seconds == pytest.approx(14 * 405)
    assert slow.checkpoint_interval_hours >= 4 * slow.write_seconds / 3600
    assert slow.share < quick.share
    often = among_failures(checkpoint_interval_minutes=1e-3, storage_gb_per_s=1.0)
    assert often.checkpoint_interval_hours == pytest.approx(slow.write_seconds / 3600)
    assert among_failures(checkpoint_interval_minutes=1e-3).checkpoint_interval_hours == pytest.approx(7 / 3600)
    assert among_failures(mtbf_per_gpu_hours=500.0).checkpoint_interval_hours == pytest.approx(5 / 60)
    seldom = among_failures(mtbf_per_gpu_hours=500.0, least_checkpoint_interval_minutes=20.0)
    assert seldom.checkpoint_interval_hours == pytest.approx(20 / 60)
    _, said = goodput_notes(often, BudgetSection(checkpoint_interval_minutes=1e-3, mtbf_per_gpu_hours=50_000))
    assert "checkpoint_interval_minutes is 0.001" in said
    assert "storage_gb_per_s" in said


def test_a_checkpoint_that_is_not_written_beside_training_stops_it() -> None:
    beside, stopping = among_failures(), among_failures(checkpoint_async=False)
    assert stopping.checkpoint_seconds == pytest.approx(beside.checkpoint_seconds + beside.write_seconds)
    assert stopping.share < beside.share


def test_what_is_assumed_is_told_with_the_keys_that_take_one_s_own() -> None:
    assert "Llama 3 405B" in among_failures().rates
    (said,) = goodput_notes(among_failures(), BudgetSection())
    assert "9 clusters" in said
    (said,) = goodput_notes(among_failures(mtbf_per_gpu_hours=1e5), BudgetSection(mtbf_per_gpu_hours=1e5))
    assert "clusters" not in said
    assert "mtbf_per_gpu_hours" not in said
    assert "20 minutes to the first new step" in said
    own: dict[str, Any] = {"mtbf_per_gpu_hours": 1e5, "detection_minutes": 5.0, "restart_minutes": 5.0}
    own |= {"spare_nodes": 4, "repair_hours": 24.0, "planned_stops_per_month": 2.0}
    assert goodput_notes(among_failures(**own), BudgetSection(**own)) == []
    assert goodput_notes(None, BudgetSection()) == []


@pytest.mark.parametrize("budget", [{}, {"mtbf_per_gpu_hours": 20.0}, {"mtbf_per_gpu_hours": 5000.0}])
def test_the_spares_that_are_told_given_back_change_nothing(budget: dict[str, float]) -> None:
    found = among_failures(**budget)
    assert among_failures(**budget, spare_nodes=found.spare_nodes) == found


def test_what_is_assumed_of_failures_is_what_is_expected() -> None:
    found = among_failures()
    assert found.failures is not None
    assert found.hours is not None
    assert found.low_failures is not None
    assert found.high_failures is not None
    running = found.hours * (1.0 - found.causes["maintenance"] - found.causes["waiting"])
    assert found.failures == pytest.approx(running / found.mtbf_hours, rel=0.02)
    assert found.low_failures < found.failures < found.high_failures
    assert found.low_mtbf_hours < found.mtbf_hours < found.high_mtbf_hours
    assert found.low_planned_stops_per_month < found.planned_stops_per_month < found.high_planned_stops_per_month


@given(st.floats(1e-6, 1e12), st.floats(1e-9, 1e6), st.floats(1e-6, 1e5), st.floats(1e-9, 1e9), st.floats(1e-3, 1e6))
def test_a_training_ends_or_makes_no_progress(
    mtbf: float, checkpoint: float, restart: float, storage: float, hours: float
) -> None:
    rates = {"checkpoint_seconds": checkpoint, "restart_minutes": restart, "storage_gb_per_s": storage}
    found = among_failures(hours, mtbf_per_gpu_hours=mtbf, **rates)
    if found.hours is None:
        assert (found.share, found.failures) == (0.0, None)
        assert "makes no progress" in " ".join(goodput_notes(found, BudgetSection(mtbf_per_gpu_hours=mtbf)))
    else:
        assert 0.01 < found.share <= 1.0
        assert found.hours < 100 * hours
    floor = max(7 / 3600, 4 * found.write_seconds / 3600)
    assert found.checkpoint_interval_hours >= min(hours, floor) * (1 - 1e-9)


@pytest.mark.parametrize("value", [0, -1, 0.0])
def test_checkpoints_that_cost_nothing_are_refused(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(full_form() | {"budget": {"train_tokens": 1e12, "checkpoint_seconds": value}}, tmp_path / "c.yml")
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert f"budget.checkpoint_seconds is {value}" in error
    assert "expected more than 0 seconds; leave it out" in error


def test_a_training_without_progress_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form() | {"budget": {"train_tokens": 1e12, "mtbf_per_gpu_hours": 1e-3}}, tmp_path / "c.yml")
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert "no progress among" in said
    assert "Note: The training makes no progress" in said
    assert main([str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["budget"]["goodput"]
    assert (found["share"], found["hours"], found["failures"]) == (0.0, None, None)


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
    assert often.failures is not None
    assert whole.goodput.failures is not None
    assert often.failures > 50 * whole.goodput.failures
    fixed = predict(content | {"budget": {"train_tokens": 1e12, "checkpoint_interval_minutes": 30.0}}).budget.goodput
    assert fixed is not None
    assert fixed.checkpoint_interval_hours == 0.5
    assert predict(full_form()).budget.goodput is None
