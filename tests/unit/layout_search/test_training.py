"""A search for a whole training: its batch in tokens, its price, limits on it, and the fewest GPUs that meet a goal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor import predict, search
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.layout_search.near_duplicates import NOISE, alike
from predictor.layout_search.question import SearchQuestion, search_problem
from predictor.layout_search.rank import rank
from tests.unit.layout_search.test_search import SMALL, config

TRAINED: dict[str, Any] = {"system": "H100", "global_batch_size": 512, "train_tokens": 1e12}
GOALS: dict[str, Any] = {**TRAINED, "price": 2.0, "framework": "megatron", "top": 1}


def test_near_duplicates_are_one_row_with_all_of_them() -> None:
    question = SearchQuestion("llama3-70b", 512, system="H100", global_batch_size=1024, framework="megatron")
    problem = search_problem(question)
    folded = rank(problem.space, problem.system, problem.memory_gib, top=5, fold=True)
    assert any(folded.near_duplicates)
    everything = rank(problem.space, problem.system, problem.memory_gib, top=200).best
    for leader, near_duplicates in zip(folded.best, folded.near_duplicates, strict=True):
        near = [
            other
            for other in everything
            if alike(other.plan) == alike(leader.plan)
            and leader.step_us <= other.step_us <= leader.step_us * (1 + NOISE)
        ]
        assert {folded_in.plan for folded_in in near_duplicates} == {other.plan for other in near} - {leader.plan}
    times = [leader.step_us for leader in folded.best]
    assert times == sorted(times)


def test_a_batch_in_tokens_is_a_whole_number_of_samples() -> None:
    in_tokens = search("llama3-8b", 64, system="H100", global_batch_tokens=512 * 8192, top=1)
    in_samples = search("llama3-8b", 64, system="H100", global_batch_size=512, top=1)
    assert in_tokens.layouts[0].step == in_samples.layouts[0].step
    with pytest.raises(ConfigError, match=r"must be a multiple of sequence_length, 8192. Try 3,997,696 or 4,005,888"):
        search("llama3-8b", 64, system="H100", global_batch_tokens=4_000_000)
    with pytest.raises(ConfigError, match="both given"):
        search("llama3-8b", 64, system="H100", global_batch_tokens=8192, global_batch_size=1)


@pytest.mark.parametrize(
    ("training", "parallelism"),
    [
        ({"micro_batch_size": 1, "num_micro_batches": 1}, {"data_parallel_size": 1}),
        ({"micro_batch_size": 4, "num_micro_batches": 8}, {}),
    ],
)
def test_a_guessed_batch_is_refused(training: dict[str, Any], parallelism: dict[str, Any], tmp_path: Path) -> None:
    path = config(tmp_path / "c.yml", dict(SMALL), training, **parallelism)
    with pytest.raises(ConfigError, match="--global-batch-size is missing: the model's file says"):
        search(path, 8)
    assert search(path, 8, global_batch_size=64, top=1).layouts


def test_a_training_has_the_hours_and_the_price_of_its_prediction() -> None:
    result = search("llama3-8b", 64, **TRAINED, price=2.0, top=2)
    layout = result.layouts[0]
    assert layout.training is not None
    budget = predict(layout.configuration).budget
    assert budget.goodput is not None
    assert budget.goodput.hours is not None
    assert layout.training.hours == pytest.approx(budget.goodput.hours)
    assert layout.training.price == pytest.approx(budget.goodput.hours * 64 * 2.0)
    assert result.to_dict()["layouts"][0]["training"]["steps"] == budget.steps
    assert "training" in str(result)
    assert "price" in str(result)


def test_hours_and_price_are_those_of_a_calculation_by_hand() -> None:
    rare = {"budget.mtbf_per_gpu_hours": 5e6, "budget.planned_stops_per_month": 0}
    layout = search("llama3-8b", 64, **TRAINED, price=2.0, top=1, changes=rare).layouts[0]
    assert layout.training is not None
    steps = math.ceil(TRAINED["train_tokens"] / (TRAINED["global_batch_size"] * 8192))
    hours = steps * layout.step.us / 3.6e9
    assert layout.training.steps == steps
    assert hours < layout.training.hours == pytest.approx(hours, rel=5e-3)  # failures and checkpoints
    assert layout.training.goodput == pytest.approx(hours / layout.training.hours)
    assert layout.training.price == pytest.approx(layout.training.hours * 64 * 2.0)


def test_a_training_without_progress_has_no_hours(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    budget = {"train_tokens": 1e12, "price_per_gpu_hour": 2.0, "mtbf_per_gpu_hours": 1e-3}
    path.write_text(yaml.safe_dump({"model": "llama3-8b", "budget": budget}), "utf-8")
    asked: dict[str, Any] = {"system": "H100", "global_batch_size": 512, "framework": "megatron", "top": 1}
    found = search(str(path), 64, **asked)
    said = found.to_dict()["layouts"][0]["training"]
    assert (said["hours"], said["gpu_hours"], said["price"], said["goodput"]) == (None, None, None, 0.0)
    assert "no end" in str(found)
    with pytest.raises(ConfigError, match="makes no progress"):
        search(str(path), 64, **asked, max_days=30)


def test_a_configuration_may_say_tokens_and_price(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text(
        yaml.safe_dump({"model": "llama3-8b", "budget": {"train_tokens": 1e12, "price_per_gpu_hour": 2.0}}), "utf-8"
    )
    asked: dict[str, Any] = {"system": "H100", "global_batch_size": 512, "framework": "megatron", "top": 1}
    said = search(str(path), 64, **asked, max_days=30, max_price=1e6).layouts[0].training
    assert said == search("llama3-8b", 64, **asked, train_tokens=1e12, price=2.0).layouts[0].training
    assert search(str(path), **asked, deadline_days=30).num_gpus == 48


def test_limits_leave_out_what_exceeds_them() -> None:
    every = search("llama3-8b", 64, **TRAINED, price=2.0, top=8)
    hours = [layout.training.hours for layout in every.layouts if layout.training is not None]
    kept = search("llama3-8b", 64, **TRAINED, max_hours=hours[3] * 1.0001, top=8)
    assert len(kept.layouts) == 4
    assert len(search("llama3-8b", 64, **TRAINED, max_days=hours[3] * 1.0001 / 24, top=8).layouts) == 4
    with pytest.raises(ConfigError, match="on 64 GPUs keeps the limit: training in the fastest that fits costs"):
        search("llama3-8b", 64, **TRAINED, price=2.0, max_price=hours[0])  # an hour of 64 GPUs costs 128
    narrow = search("llama3-8b", 64, **TRAINED, max_memory_gib=40.0, top=3)
    assert all(layout.memory_gib <= 40.0 for layout in narrow.layouts)


def test_the_fewest_gpus_meet_a_deadline() -> None:
    result = search("llama3-8b", **GOALS, deadline_days=20)
    tried = {count.num_gpus: count for count in result.counts}
    assert list(tried) == sorted(tried)
    assert {8, 16, 32, 64} <= tried.keys()
    found = tried[result.num_gpus]
    assert found.verdict == "meets it"
    assert found.training is not None
    assert found.training.days <= 20
    for count in result.counts:
        assert (count.num_gpus >= result.num_gpus) == (count.verdict == "meets it")
    assert tried[8].step_us is None  # too few at the peak of their GPUs
    fewer = search("llama3-8b", 32, **GOALS).layouts[0].training
    assert fewer is not None
    assert fewer.days > 20
    assert "meets it" in [row["verdict"] for row in json.loads(json.dumps(result.to_dict()))["gpu_counts"]]
    assert "meets it" in str(result)


def test_numbers_between_doublings_are_tried() -> None:
    goals: dict[str, Any] = {**TRAINED, "global_batch_size": 480, "framework": "megatron", "top": 1}
    slow = search("llama3-8b", 48, **goals).layouts[0].training
    assert slow is not None
    result = search("llama3-8b", **goals, deadline_days=slow.hours / 24 * 1.001)
    assert result.num_gpus == 48
    assert [count.num_gpus for count in result.counts][-3:] == [32, 40, 48]


def test_the_fewest_gpus_meet_a_budget() -> None:
    result = search("llama3-8b", **GOALS, budget=1e6)
    assert result.layouts[0].training is not None
    assert result.layouts[0].training.price is not None
    assert result.layouts[0].training.price <= 1e6
    assert [count.num_gpus for count in result.counts] == [8]
    with pytest.raises(ConfigError, match=r"no number of GPUs up to 65,536 meets the goals: training on .* costs"):
        search("llama3-8b", **GOALS, budget=1000)
    both = search("llama3-8b", **GOALS, budget=1e6, deadline_days=20)
    assert both.num_gpus > 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpus", "8", "--framework", "nano"], "--framework is nano"),
        ([], "--gpus is missing"),
        (["--gpus", "8", "--deadline-days", "3"], "--gpus is given beside --deadline-days"),
        (["--deadline-days", "3"], "need --train-tokens"),
        (["--budget", "3", "--train-tokens", "1e12"], "--budget needs --price"),
        (["--gpus", "8", "--max-hours", "3"], "need --train-tokens"),
        (["--gpus", "8", "--max-price", "3", "--train-tokens", "1e12"], "--max-price needs"),
        (["--gpus", "8", "--price", "2"], "--price needs --train-tokens"),
        (["--gpus", "8", "--max-gpus", "16"], "--max-gpus is for"),
        (["--gpus", "8", "--train-tokens", "-1"], "--train-tokens is -1.0; expected a number above 0"),
        (["--gpus", "8", "--train-tokens", "1e30"], "--train-tokens is 1e+30; expected a number above 0, up to 1e+18"),
        (["--gpus", "8", "--train-tokens", "nan"], "--train-tokens is nan"),
        (["--gpus", "8", "--train-tokens", "1e12", "--price", "-1"], "--price is -1.0; expected a number from 0"),
        (["--train-tokens", "1e12", "--deadline-days", "0"], "--deadline-days is 0.0; expected a number above 0"),
        (["--gpus", "8", "--max-memory-gib", "0"], "--max-memory-gib is 0"),
        (["--gpus", "8", "--global-batch-tokens", "0.5"], "--global-batch-tokens"),
        (
            ["--deadline-days", "0.001", "--train-tokens", "1e12", "--max-gpus", "64"],
            "no number of GPUs up to 64 meets the goals: takes",
        ),
    ],
)
def test_bad_questions_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--model", "llama3-8b", "--system", "H100", "--global-batch-size", "512", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_slow_network_is_said() -> None:
    result = search("llama3-8b", 64, system="Perlmutter", global_batch_size=64, top=1)
    assert any("Between nodes Perlmutter reached" in note for note in result.notes)
    assert any("Between nodes" in note for note in result.to_dict()["notes"])
