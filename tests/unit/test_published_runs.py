"""A prediction of a kind that published runs are known of says how those came out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fitting.publish import seal
from predictor.__main__ import main
from predictor.base.bundled import REGRESSORS_FOLDER, systems
from predictor.configuration.loading import prepare
from predictor.costs.published import PublishedSystem
from predictor.step.published_groups import Group, published_runs
from predictor.step.published_runs import published_runs_note
from tests.unit.examples import full_form, write

SHARDED: dict[str, Any] = {"zero_stage": 2, "overlap_gradient_reduction": True}


def note(system: str = "Perlmutter", **layout: Any) -> str | None:
    content = full_form(system=system, parallelism={"data_parallel_size": 4, **layout})
    loaded = prepare(content, Path.cwd())
    return published_runs_note(loaded.run, loaded.system)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"zero_stage": 1, "overlap_gradient_reduction": True},
        {"zero_stage": 2},
        {"zero_stage": 3},
        SHARDED | {"data_parallel_size": 1},
    ],
)
def test_a_measured_system_says_nothing_where_no_sharded_traffic_is_hidden(layout: dict[str, Any]) -> None:
    assert note(**layout) is None


@pytest.mark.parametrize(
    "layout", [SHARDED, {"zero_stage": 3, "overlap_parameter_gather": True}, {"zero_stage": 3, **SHARDED}]
)
def test_hidden_sharded_traffic_says_how_runs_on_the_same_chip_came_out(layout: dict[str, Any]) -> None:
    said = note(**layout)
    assert said is not None
    assert "19 % too short for llm-foundry FSDP on A100 80 GB (61 rows, 52 % inside" in said
    assert "34 %" not in said


def test_sharding_decides_on_a_system_known_from_a_data_sheet() -> None:
    said, other = note("H100", gpus_per_node=4, **SHARDED), note("H100", gpus_per_node=4)
    assert said is not None
    assert other is not None
    assert "34 % too short for llm-foundry FSDP on H100 (70 rows" in said
    assert "NeMo" not in said
    assert "5 % too short for NeMo on H100" in other
    assert "FSDP" not in other


def test_a_gpu_with_operators_of_its_own_is_not_said_to_be_known_from_a_data_sheet(tmp_path: Path) -> None:
    shutil.copytree(REGRESSORS_FOLDER / "Perlmutter", tmp_path / "Own")
    hardware = tmp_path / "Own" / "system.yaml"
    donors = {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"}
    content = yaml.safe_load(hardware.read_text(encoding="utf-8")) | {"transfer": donors}
    hardware.write_text(yaml.safe_dump(content), encoding="utf-8")
    seal(tmp_path / "Own")
    run = prepare(full_form(parallelism={"data_parallel_size": 4}), Path.cwd()).run
    assert published_runs_note(run, PublishedSystem(tmp_path / "Own", "fp16")) is None
    assert published_runs_note(run, PublishedSystem(REGRESSORS_FOLDER / "Selene", "fp16")) is not None


def test_a_chip_without_rows_gets_all_groups_of_the_kind_and_says_so() -> None:
    said = note("MI300X", gpus_per_node=4)
    assert said is not None
    assert "none of them on the AMDInstinctMI300X" in said
    assert said.count("rows,") == len(published_runs().data_sheet)


def test_an_error_without_a_spread_is_printed_without() -> None:
    group = Group(name="A", gpus=("B",), rows=3, mean_error_percent=1.5, inside_interval_percent=50, source="C")
    assert group.summary == "1.5 % too long for A (3 rows, 50 % inside their 90 % interval)"


def test_groups_name_gpus_that_are_published() -> None:
    published = {
        prepare(full_form(system=name, parallelism={"gpus_per_node": None}), Path.cwd()).system.gpu
        for name in systems()
    }
    named = {gpu for group in (*published_runs().sharded, *published_runs().data_sheet) for gpu in group.gpus}
    assert named <= published


def test_text_json_and_comparison_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(parallelism=SHARDED | {"data_parallel_size": 4}), tmp_path / "c.yml")
    expected = note(**SHARDED)
    assert main(["predict", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"].count(expected) == 1
    for command in (["predict", str(path)], ["compare", str(path), "--system", "Vista"]):
        assert main(command) == 0
        assert "Published runs with ZeRO-2/3 or FSDP" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("stages", [["2"], ["0", "2"], ["0"]])
def test_a_search_says_it_once_of_the_winners_that_it_is_about(
    stages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", "--model", "llama3-8b", "--system", "Perlmutter", "--gpus", "16", "--global-batch-size", "64"]
    narrowed = [word for stage in stages for word in ("--zero-stage", stage)]
    assert main([*command, *narrowed, "--top", "40", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = [text for text in document["notes"] if "Published runs" in text]
    numbers = [i for i, layout in enumerate(document["layouts"], start=1) if layout["layout"]["zero_stage"] >= 2]
    assert bool(numbers) == ("2" in stages)
    if not numbers:
        assert not said
    elif len(numbers) == len(document["layouts"]):
        assert [text.startswith("Published runs") for text in said] == [True]
    else:
        plural = "s" if len(numbers) > 1 else ""
        assert [text.startswith(f"Layout{plural} {', '.join(map(str, numbers))}: ") for text in said] == [True]
