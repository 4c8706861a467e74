"""Side by side: configurations, systems, and hardware that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from predictor.__main__ import main
from predictor.core.base.errors import ConfigError
from predictor.core.costs.hardware_change import CHANGES, changed, current, parse_change
from predictor.core.plan.loading import load, prepare, read_config
from predictor.core.step.prediction import predict
from tests.unit.examples import full_form, short_form, write


def answered(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, object]:
    assert main([*command, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert isinstance(content, dict)
    return content


def times(content: dict[str, object]) -> list[float]:
    compared = content["compared"]
    assert isinstance(compared, list)
    return [one["prediction"]["step"]["time_us"] for one in compared]


def test_two_configurations_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(full_form(), tmp_path / "one.yml")
    other = write(full_form(training={"num_micro_batches": 16}), tmp_path / "other.yml")
    found = times(answered(capsys, "compare", str(one), str(other)))
    assert found == [predict(*load(path)).step.us for path in (one, other)]
    assert main(["compare", str(one), str(other)]) == 0
    table = capsys.readouterr().out
    assert "step" in table
    assert "against the first" in table


@pytest.mark.parametrize("form", ["full", "short"])
def test_one_configuration_on_two_systems(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = full_form() if form == "full" else short_form()
    path = write(content, tmp_path / "one.yml")
    found = times(answered(capsys, "compare", str(path), "--system", "Vista"))
    assert found[1] < found[0]  # the same work on a faster GPU


def test_changing_nothing_changes_nothing(tmp_path: Path) -> None:
    run, system = load(write(full_form(), tmp_path / "c.yml"))
    same = {key: value for key in CHANGES if (value := current(system.hardware, key)) is not None}
    assert predict(run, changed(system, same)).step == predict(run, system).step


@pytest.mark.parametrize("key", ["peak_tflop_per_s", "memory_bandwidth_gb_per_s", "inter_node_gb_per_s"])
def test_better_hardware_is_faster_and_says_that_it_was_not_measured(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = {"parallelism": {"pipeline_parallel_size": 2, "data_parallel_size": 8}}
    path = write(full_form(**layout), tmp_path / "c.yml")
    content = answered(capsys, "whatif", str(path), "--set", f"{key}=x2")
    before, after = times(content)
    assert after < before
    compared = content["compared"]
    assert isinstance(compared, list)
    assert compared[1]["prediction"]["step"]["source"] == "analytic"


def test_more_gpus_in_a_node_shorten_what_crosses_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(parallelism={"data_parallel_size": 8}), tmp_path / "c.yml")
    before, after = times(answered(capsys, "whatif", str(path), "--set", "gpus_per_node=8"))
    assert after < before


def test_memory_decides_only_whether_it_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    content = answered(capsys, "whatif", str(path), "--set", "memory_gib=1")
    before, after = times(content)
    assert after == before
    compared = content["compared"]
    assert isinstance(compared, list)
    assert [one["prediction"]["stages"][0]["memory"]["fits"] for one in compared] == [True, False]


@pytest.mark.parametrize("text", ["bandwidth=2", "memory_gib", "memory_gib=-1", "memory_gib=much", "memory_gib=nan"])
def test_what_cannot_be_changed_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    assert main(["whatif", str(path), "--set", text]) == 2
    captured = capsys.readouterr()
    assert f"--set {text}" in captured.err
    assert captured.err.count("\n") == 1


def test_nothing_to_compare_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    for command in (["compare", str(path)], ["whatif", str(path)]):
        assert main(command) == 2
        assert "needs" in capsys.readouterr().err


def test_a_factor_needs_a_number_to_multiply(tmp_path: Path) -> None:
    loaded = prepare(*read_config(write(full_form(), tmp_path / "c.yml")))
    assert parse_change("inter_node_gb_per_s=x4", loaded.system.hardware) == ("inter_node_gb_per_s", 100.0)
    gpu = loaded.system.hardware.gpu.model_copy(update={"memory_gib": None})
    with pytest.raises(ConfigError, match="does not say"):
        parse_change("memory_gib=x2", loaded.system.hardware.model_copy(update={"gpu": gpu}))


def test_a_system_keeps_the_gpus_per_node_that_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(parallelism={"data_parallel_size": 8, "gpus_per_node": 2}), tmp_path / "c.yml")
    content = answered(capsys, "compare", str(path), "--system", "H100", "--system", "Vista")
    compared = content["compared"]
    assert isinstance(compared, list)
    assert [one["prediction"]["run"]["gpus_per_node"] for one in compared] == [2, 2, 1]


def test_a_whole_node_becomes_a_whole_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (short_form(), full_form(parallelism={"data_parallel_size": 8, "gpus_per_node": 4})):
        path = write(content, tmp_path / "c.yml")
        compared = answered(capsys, "compare", str(path), "--system", "H100")["compared"]
        assert isinstance(compared, list)
        assert [one["prediction"]["run"]["gpus_per_node"] for one in compared] == [4, 8]


def test_one_number_changes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    assert main(["whatif", str(path), "--set", "memory_gib=1", "--set", "memory_gib=2"]) == 2
    assert "--set names memory_gib twice; give each key once" in capsys.readouterr().err


def test_a_comparison_says_what_does_not_fit_and_why_to_doubt_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(full_form(training={"precision": "bf16"}), tmp_path / "c.yml")
    assert main(["whatif", str(path), "--set", "memory_gib=1"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^fits +yes +NO$", table, re.MULTILINE)
    assert "Does not fit" in table
    assert "bf16 was not measured" in table
