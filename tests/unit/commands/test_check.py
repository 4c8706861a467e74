"""``check``: limits of a prediction, for continuous integration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import predict
from predictor.__main__ import main
from tests.unit.examples import full_form, write


def content() -> dict[str, object]:
    return {**full_form(), "budget": {"train_tokens": 1e9, "price_per_gpu_hour": 2.0}}


def test_kept_and_broken_limits_set_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(content(), tmp_path / "c.yml")
    step_s = predict(path).step.us / 1e6
    assert main(["check", str(path), "--max-step-s", str(step_s * 1.01)]) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert main(["check", str(path), "--max-step-s", str(step_s * 0.99), "--min-mfu", "0.001"]) == 3
    told = capsys.readouterr().out
    assert "FAIL  max_step_s" in told
    assert "ok    min_mfu" in told


def test_certain_takes_the_worse_end(tmp_path: Path) -> None:
    path = write(content(), tmp_path / "c.yml")
    step = predict(path).step
    limit = str((step.us + step.high_us) / 2e6)
    assert main(["check", str(path), "--max-step-s", limit]) == 0
    assert main(["check", str(path), "--max-step-s", limit, "--certain"]) == 3


def test_what_may_not_fit_breaks_the_limit_only_where_it_must_be_certain(tmp_path: Path) -> None:
    needed = predict(write(content(), tmp_path / "c.yml")).memory_gib
    near = {**content(), "cluster": {"memory_gib": needed / 1.05}}
    path = str(write(near, tmp_path / "near.yml"))
    assert main(["check", path, "--max-step-s", "1e6"]) == 0
    assert main(["check", path, "--max-step-s", "1e6", "--certain"]) == 3
    beyond = {**content(), "cluster": {"memory_gib": needed / 1.1}}
    assert main(["check", str(write(beyond, tmp_path / "beyond.yml")), "--max-step-s", "1e6"]) == 3


@pytest.mark.parametrize(
    "option", ["--max-days", "--max-gpu-hours", "--max-price", "--min-tokens-per-second", "--max-memory-gib"]
)
def test_every_limit_is_that_of_the_prediction(option: str, tmp_path: Path) -> None:
    path = write(content(), tmp_path / "c.yml")
    step = predict(path)
    bill = step.budget
    assert bill.price is not None
    value = {
        "--max-days": bill.days,
        "--max-gpu-hours": bill.gpu_hours,
        "--max-price": bill.price,
        "--min-tokens-per-second": step.tokens_per_second,
        "--max-memory-gib": step.memory_gib,
    }[option]
    looser, tighter = (0.999, 1.001) if option.startswith("--min") else (1.001, 0.999)
    assert main(["check", str(path), option, repr(value * looser)]) == 0
    assert main(["check", str(path), option, repr(value * tighter)]) == 3


def test_a_budget_file_lists_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    write(content(), folder / "small.yml")
    budget = tmp_path / "budget.yml"
    budget.write_text(
        "checks:\n  - {config: configs/small.yml, max_step_s: 1e6}\n"
        "  - {config: configs/small.yml, system: Vista, min_mfu: 0.99}\n",
        encoding="utf-8",
    )
    assert main(["check", "--budget", str(budget), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert [check["kept"] for check in document["checks"]] == [True, False]
    assert document["kept"] is False
    assert "Vista" in document["checks"][1]["name"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("checks: []\n", "checks"),
        ("checks: [{config: c.yml, max_stepp_s: 3}]\n", "max_stepp_s"),
        ("checks: [{config: c.yml, min_mfu: 40}]\n", "min_mfu"),
        ("checks: [{config: absent.yml, max_step_s: 3}]\n", "absent.yml does not exist"),
    ],
)
def test_a_wrong_budget_is_one_line(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(content(), tmp_path / "c.yml")
    budget = tmp_path / "budget.yml"
    budget.write_text(text, encoding="utf-8")
    assert main(["check", "--budget", str(budget)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "check needs configuration files with limits"),
        (("--budget", "absent.yml", "--max-step-s", "3"), "--max-step-s needs a configuration file"),
        (("CONFIG", "--min-mfu", "40"), "--min-mfu"),
    ],
)
def test_wrong_options_are_one_line(
    options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(content(), tmp_path / "c.yml"))
    assert main(["check", *(path if option == "CONFIG" else option for option in options)]) == 2
    assert said in capsys.readouterr().err


def test_a_limit_of_a_training_needs_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    assert main(["check", str(path), "--max-days", "3"]) == 2
    assert "max_days needs budget.train_tokens" in capsys.readouterr().err


@pytest.mark.parametrize("certain", [False, True])
def test_a_prediction_that_equals_its_limit_keeps_it(
    certain: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(content(), tmp_path / "c.yml"))
    step = predict(path).step
    us = step.high_us if certain else step.us
    more = ["--certain"] if certain else []
    assert main(["check", path, "--max-step-s", repr(us / 1e6), *more]) == 0
    assert ("at worst" in capsys.readouterr().out) is certain
    assert main(["check", path, "--max-step-s", repr(us / 1e6 * (1 - 1e-12)), *more]) == 3


def test_a_system_of_ones_own_is_relative_to_the_budget_file(tmp_path: Path) -> None:
    write(content(), tmp_path / "c.yml")
    (tmp_path / "own.yml").write_text("like: Perlmutter\ngpu: {memory_gib: 1}\n", encoding="utf-8")
    budget = tmp_path / "budget.yml"
    budget.write_text("checks:\n  - {config: c.yml, system: own.yml}\n", encoding="utf-8")
    assert main(["check", "--budget", str(budget)]) == 3


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--min-tokens-per-second", "-1", "--min-tokens-per-second is -1: input should be greater than 0"),
        ("--max-step-s", "nan", "--max-step-s is nan"),
        ("--min-mfu", "2", "--min-mfu is 2: input should be less than or equal to 1"),
    ],
)
def test_a_limit_that_cannot_be_is_named(
    option: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(write(content(), tmp_path / "c.yml")), option, value]) == 2
    assert said in capsys.readouterr().err
