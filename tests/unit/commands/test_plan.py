"""``plan``: options beside a file, what it writes, and what a newcomer gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.__main__ import main
from tests.unit.training_plan.tiny import TINY

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yml"
    path.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    (tmp_path / "model.yml").write_text(yaml.safe_dump(TINY["model"]), encoding="utf-8")
    return path


def told(words: list[str], capsys: Capture, code: int = 0) -> str:
    assert main(words) == code
    printed = capsys.readouterr()
    return printed.err if code == 2 else printed.out


def answer(words: list[str], capsys: Capture) -> dict[str, Any]:
    return dict(json.loads(told(["plan", *words, "--json"], capsys)))


def test_options_say_what_a_file_says(file: Path, capsys: Capture) -> None:
    of_file = answer([str(file)], capsys)
    model = str(file.with_name("model.yml"))
    options = ["--train-tokens", "1e11", "--start", "2027-01-01", "--global-batch-size", "256"]
    systems = ["--system", "H100=8,16", "--price", "2"]
    assert answer(["--model", model, *options, *systems], capsys) == of_file
    assert answer([model, *options, "--system", "H100", "--gpus", "8,16", "--price", "H100=2"], capsys) == of_file
    assert of_file["format"] == "estimate-train-time/plan/1"
    assert of_file["kept"]


def test_options_count_before_the_file(file: Path, capsys: Capture) -> None:
    dearer = answer(
        [str(file), "--price", "4", "--deadline", "90", "--set", "training.fused_gradient_accumulation=false"], capsys
    )
    assert {plan["price_per_gpu_hour"] for plan in dearer["plans"]} == {4.0}
    assert {plan["num_gpus"] for plan in dearer["plans"]} == {8, 16}
    assert dearer["deadline_hours"] == 90 * 24.0
    other = answer(
        [str(file), "--system", "B200=8", "--price", "4", "--precision", "bf16", "--precision", "fp8"], capsys
    )
    assert {(plan["system"], plan["precision"]) for plan in other["plans"]} == {("B200", "bf16"), ("B200", "fp8")}


def test_a_price_is_of_a_system_however_it_is_spelled(file: Path, capsys: Capture) -> None:
    for system, price in (("A100", "A100_SXM=3"), ("A100_SXM", "A100=3"), ("a100-sxm", "A100=3")):
        plans = answer([str(file), "--system", f"{system}=8", "--price", price], capsys)["plans"]
        assert [(plan["system"], plan["price_per_gpu_hour"]) for plan in plans] == [("A100_SXM", 3.0)]


def test_a_system_that_is_named_again_has_all_its_gpus(file: Path, capsys: Capture) -> None:
    words = [str(file), "--price", "2", "--system", "H100=8", "--system", "H100=16,32"]
    assert {plan["num_gpus"] for plan in answer(words, capsys)["plans"]} == {8, 16, 32}
    said = told(["plan", str(file), "--system", "H100=8", "--system", "H100=up to 64"], capsys, 2)
    assert "--system H100=up to 64: H100 has GPUs already; give it one range, or lists alone" in said


def test_the_json_has_a_distribution_and_no_number_that_json_lacks(file: Path, capsys: Capture) -> None:
    chosen = answer([str(file), "--deadline", "2027-06-01", "--max-price", "1e6"], capsys)["chosen"]
    quantiles = [each["hours"] for each in chosen["distribution"]]
    assert quantiles == sorted(quantiles)
    assert chosen["low_hours"] < chosen["hours"] < chosen["high_hours"]
    assert chosen["price"] == pytest.approx(chosen["hours"] * chosen["num_gpus"] * 2.0)
    hopeless = answer([str(file), "--set", "budget.mtbf_per_gpu_hours=0.1"], capsys)
    assert not hopeless["kept"]
    assert hopeless["chosen"]["hours"] is None
    assert "makes no progress" in told(["plan", str(file), "--set", "budget.mtbf_per_gpu_hours=0.1"], capsys)


def test_the_chosen_plan_is_written_as_arguments_and_as_a_job(file: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments, job, run = (str(tmp_path / name) for name in ("train.sh", "job.yml", "run.yml"))
    words = [str(file), "--framework", "megatron", "--set", "model.vocab_size=32000", "--write", run]
    chosen = answer([*words, "--write-arguments", arguments, "--write-job", job], capsys)["chosen"]
    assert "pretrain_gpt.py" in Path(arguments).read_text("utf-8")
    content = yaml.safe_load(Path(job).read_text("utf-8"))
    assert content["training"]["max_steps"] == chosen["steps"]
    again = json.loads(told(["predict", run, "--json"], capsys))
    assert again["step"]["time_us"] == chosen["time_us"]
    assert again["budget"]["steps"] == chosen["steps"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "model is missing; a preset"),
        (["--model", "llama3-8b"], "systems is missing; name one with its GPUs: --system H100"),
        (["FILE", "--price", "H200=2"], "H200 is no system of the plan. Did you mean H100?"),
        (["FILE", "--gpus", "1,024"], "write 1024, or [1, 24]"),
        (["FILE", "--budget", "5"], "has no option --budget"),
        (["FILE", "--price", "free"], "expected a price of a GPU-hour"),
        (["FILE", "--deadline", "2020-01-01"], "before the start"),
        (["FILE", "--probability", "80"], "expected a probability between 0 and 1"),
        (["FILE", "--write-job", "j.yml"], "--write-job needs --write-arguments FILE"),
        (["FILE", "--write-arguments", "OUT"], "--write-arguments needs --framework"),
        (["FILE", "--prices", "absent.yml"], "which does not exist"),
        (["absent.yml"], "absent.yml does not exist"),
        (["FILE", "--dedline", "3"], "has no option --dedline. Did you mean --deadline?"),
        (["FILE", "--top", "0"], "--top is 0; it must be at least 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(words: list[str], message: str, file: Path, capsys: Capture) -> None:
    given = [{"FILE": str(file), "OUT": str(file.with_name("out.sh"))}.get(word, word) for word in words]
    said = told(["plan", *given], capsys, 2)
    assert message in said
    assert said.count("\n") == 1


def test_other_commands_name_a_plan(file: Path, capsys: Capture) -> None:
    assert "is a plan, of several systems: plan plan.yml takes it" in told(["predict", str(file)], capsys, 2)
    assert "is a plan, of several systems" in told(["search", "--model", str(file), "--gpus", "8"], capsys, 2)


def test_a_plan_is_checked_alone_and_in_a_budget_file(file: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "ok    min_probability" in told(["check", str(file)], capsys)
    assert "FAIL  max_days" in told(["check", str(file), "--max-days", "0.01"], capsys, 3)
    budget = tmp_path / "budget.yml"
    training = {**TINY["model"]["training"], "micro_batch_size": 1, "num_micro_batches": 1}
    file.with_name("run.yml").write_text(yaml.safe_dump({**TINY["model"], "training": training}), encoding="utf-8")
    budget.write_text("checks: [{config: plan.yml, max_price: 1}, {config: run.yml, min_probability: 0.5}]\n")
    assert "min_probability is a limit of plans" in told(["check", "--budget", str(budget)], capsys, 2)
    budget.write_text("checks: [{config: plan.yml, max_price: 1}]\n")
    assert "FAIL  max_price" in told(["check", "--budget", str(budget)], capsys, 3)
    late = file.with_name("late.yml")
    late.write_text(yaml.safe_dump({**TINY, "deadline": 0.1}), encoding="utf-8")
    assert "FAIL  min_probability" in told(["check", str(late)], capsys, 3)
