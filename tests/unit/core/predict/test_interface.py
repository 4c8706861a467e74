"""The Python interface answers what the command line does, from a path or a mapping, with the same errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

import pytest
import yaml

import predictor
from predictor import compare, load_system, predict, search
from predictor.__main__ import main
from predictor.core.costs.cost import Source
from tests.unit.examples import EXAMPLE, full_form, short_form, write

SEARCHED: dict[str, Any] = {"global_batch_size": 64, "system": "Vista", "top": 3, "pareto": True}
NOT_A_PATH: Any = 3
SEARCH = ["search", "--model", "llama3-8b", "--gpus", "16", "--global-batch-size", "64", "--system", "Vista"]


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 0
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize("content", [full_form(), short_form()], ids=["full", "short"])
def test_path_mapping_and_command_agree(
    content: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(content, tmp_path / "c.yml")
    document = json.loads(printed(capsys, "predict", str(path), "--json"))
    assert predict(path).to_dict() == predict(str(path)).to_dict() == document
    assert predict(MappingProxyType(content)).to_dict() == document
    assert str(predict(path)) == printed(capsys, "predict", str(path))


def test_properties_are_those_of_the_document() -> None:
    prediction = predict(full_form(parallelism={"pipeline_parallel_size": 2, "data_parallel_size": 2}))
    document = prediction.to_dict()
    step = prediction.step
    assert [step.us, step.low_us, step.high_us] == [document["step"][key] for key in ("time_us", "low_us", "high_us")]
    assert step.source.label == document["step"]["source"]
    assert prediction.sources == document["sources"]
    assert list(prediction.notes) == document["notes"]
    assert [one.operator for one in prediction.answers] == [
        one["operator"] + (" (by bytes)" if one["timed_by"] == "bytes" else "") for one in document["answers"]
    ]
    assert prediction.critical_stage == document["critical_stage"]
    assert prediction.tokens_per_second == document["throughput"]["tokens_per_s"]
    assert prediction.mfu == document["throughput"]["mfu"]
    assert prediction.budget.steps == 1
    for stage, said in zip(prediction.stages, document["stages"], strict=True):
        assert (stage.stage, stage.num_layers, stage.parameters_per_gpu) == tuple(
            said[key] for key in ("stage", "num_layers", "parameters_per_gpu")
        )
        assert stage.parts.step_us == said["step_us"] == pytest.approx(step.us)
        assert (stage.memory_gib, stage.fits) == (said["memory"]["total_gib"], said["memory"]["fits"])
    assert prediction.memory_gib == max(stage.memory_gib for stage in prediction.stages)
    assert prediction.fits is True
    assert predict(full_form(), hardware={"memory_gib": 1}).fits is False


def test_hardware_and_system_change_as_whatif_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(parallelism={"data_parallel_size": 8}), tmp_path / "c.yml")
    command = ["whatif", str(path), "--system", "Vista", "--set", "inter_node_gb_per_s=x2", "--set", "memory_gib=40"]
    before, after = json.loads(printed(capsys, *command, "--json"))["compared"]
    changed = predict(path, system="Vista", hardware={"inter_node_gb_per_s": "x2", "memory_gib": 40})
    assert changed.to_dict() == after["prediction"] != before["prediction"]
    assert changed.name == f"{path} on Vista, inter_node_gb_per_s=x2, memory_gib=40"
    assert predict(path).on("Vista", ["inter_node_gb_per_s=x2", "memory_gib=40.0"]).step == changed.step
    assert changed.on().step == predict(path).step
    assert changed.step.source is Source.ANALYTIC


def test_watts_have_a_column_each_with_time_and_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"num_layers": 2, "hidden_size": 4096, "num_attention_heads": 32, "sequence_length": 2048}
    content = full_form() | {"system": "H100", "model": model}
    path = write(content, tmp_path / "c.yml")
    command = ["whatif", str(path), "--set", "power_limit_w=350,500,700"]
    compared = json.loads(printed(capsys, *command, "--json"))["compared"]
    assert [one["name"] for one in compared[1:]] == [f"power_limit_w={watts}" for watts in (350, 500, 700)]
    steps = [one["prediction"]["step"]["time_us"] for one in compared]
    assert steps[1] > steps[2] > steps[3] == pytest.approx(steps[0])
    energy = [one["prediction"]["budget"]["energy_kwh"] for one in compared]
    assert energy[1] < energy[2] < energy[3] == pytest.approx(energy[0])
    said = printed(capsys, *command)
    assert "kWh for 10⁹ tokens" in said
    assert "kWh" not in printed(capsys, "whatif", str(path), "--set", "memory_gib=70")


@pytest.mark.parametrize("watts", ["50", "900"])
def test_a_power_limit_that_no_board_keeps_is_refused(
    watts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(full_form() | {"system": "H100"}, tmp_path / "c.yml")
    assert main(["predict", str(path), "--set", f"power_limit_w={watts}"]) == 2
    error = capsys.readouterr().err
    assert f"power_limit_w is {watts}" in error
    assert "more than 84 W" in error
    assert "at most 700 W" in error


def test_a_system_is_a_name_a_folder_or_a_loaded_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vista = load_system("Vista")
    (tmp_path / "published").symlink_to(vista.folder)
    monkeypatch.chdir(tmp_path)
    steps = {predict(EXAMPLE, system=system).step.us for system in ("Vista", vista, vista.folder, "published")}
    assert len(steps) == 1
    assert steps != {predict(EXAMPLE).step.us}


def test_a_comparison_is_that_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = {"train_tokens": 1e9}
    path = write({**full_form(), "budget": budget}, tmp_path / "c.yml")
    comparison = compare([path], systems="Vista")
    assert comparison.to_dict() == json.loads(printed(capsys, "compare", str(path), "--system", "Vista", "--json"))
    assert str(comparison) == printed(capsys, "compare", str(path), "--system", "Vista")
    named = compare(comparison.predictions, names=("here", "there"))
    assert [one["name"] for one in named.to_dict()["compared"]] == ["here", "there"]
    assert [one["prediction"] for one in named.to_dict()["compared"]] == [one.to_dict() for one in named.predictions]


def test_a_search_is_that_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = search("llama3-8b", 16, **SEARCHED)
    written = tmp_path / "fastest.yml"
    options = ["--top", "3", "--pareto", "--write", str(written)]
    assert result.to_dict() == json.loads(printed(capsys, *SEARCH, *options, "--json"))
    assert str(result) == printed(capsys, *SEARCH, *options)
    assert yaml.safe_load(written.read_text(encoding="utf-8")) == result.layouts[0].configuration
    for layout in (*result.layouts, *result.pareto):
        assert predict(layout.configuration).step == layout.step
        written_keys = {**layout.configuration["parallelism"], **layout.configuration["training"]}
        left_out = layout.layout.keys() - written_keys.keys()
        assert left_out <= {"expert_tensor_parallel_size", "recompute_modules"}  # what they are without being written
        assert all(layout.layout[key] == written_keys[key] for key in layout.layout.keys() - left_out)
    assert result.why == result.to_dict()["why"]
    assert len(result.to_csv().splitlines()) == 4


def test_a_search_takes_a_mapping_and_narrows(tmp_path: Path) -> None:
    content = full_form()
    path = write(content, tmp_path / "c.yml")
    narrowed: dict[str, Any] = {
        "global_batch_size": 32,
        "zero_stage": 1,
        "schedule": ["1f1b"],
        "max_tensor_parallel": 2,
    }
    results = [search(model, 8, **narrowed) for model in (content, path)]
    assert results[0].to_dict() == results[1].to_dict()
    for layout in results[0].layouts:
        assert (layout.layout["zero_stage"], layout.layout["schedule"]) == (1, "1f1b")
        assert layout.layout["tensor_parallel_size"] <= 2


def test_a_system_times_operators_and_collectives() -> None:
    system = load_system("Perlmutter", precision="fp16")
    assert system.operators["ffn_up"] == ("m", "k", "n")
    named = system.cost("linear3", {"n": 16384, "m": 4096, "k": 4096}, "backward")
    assert named == system.cost("ffn_up", (4096, 4096, 16384), "backward")
    assert named.low_us < named.us < named.high_us
    inside = system.collective("all_reduce", 10**8, nodes=1, gpus_per_node=4)
    assert 0.0 < inside.us < system.collective("all_reduce", 10**8, nodes=2, gpus_per_node=4).us
    assert system.collective("all_reduce", 10**8, nodes=1, gpus_per_node=1).us == 0.0
    assert (system.gpu, system.hardware.gpus_per_node) == ("NVIDIAA100-SXM4-80GB", 4)
    assert system.card.startswith("# Perlmutter")
    assert str(system.folder) in str(system)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: predict(NOT_A_PATH), "config is 3; expected the path"),
        (lambda: predict(full_form(system="Vist")), "Vist is not a published system. Did you mean Vista?"),
        (lambda: predict(full_form(), system=NOT_A_PATH), "system is 3; expected a name, a folder"),
        (lambda: predict(full_form(), hardware={"memory": 3}), "--set memory=3: memory is no key. Did you mean"),
        (lambda: predict(full_form(), hardware={"memory_gib": True}), "is no positive number"),
        (lambda: predict(full_form(), hardware=["memory_gib=1", "memory_gib=2"]), "names memory_gib twice"),
        (lambda: compare([full_form()]), "compare needs two configurations"),
        (lambda: compare([full_form()] * 2, names=["one"]), "names has 1 values; expected one for each of 2"),
        (lambda: search(NOT_A_PATH, 8), "--model is 3; expected a preset's name"),
        (lambda: search("llama3-8b", 0, **SEARCHED), "--gpus is 0; it must be at least 1"),
        (lambda: search("llama3-8b", 8, system="Vista"), "--global-batch-size is missing"),
        (lambda: search("llama3-8b", 8, schedule="gpipe", **SEARCHED), "--schedule is gpipe; expected 1f1b"),
        (lambda: search("llama3-8b", 8, zero_stage=[0, 4], **SEARCHED), "--zero-stage is 4; expected 0, 1, 2, 3"),
        (lambda: search("llama3-8b", 8, **SEARCHED | {"memory_gib": "80"}), "--memory-gib is '80'; expected GiB"),
        (lambda: search("llama3-8b", 8, max_tensor_parallel=0, **SEARCHED), "--max-tensor-parallel is 0"),
        (lambda: load_system("Vista", precision="fp64"), "precision is fp64; Vista was measured in fp16"),
        (lambda: load_system("Vista").cost("gelo", (1, 1)), "operator is 'gelo'; Did you mean gelu?"),
        (lambda: load_system("Vista").cost("gelu", (1, 1), "up"), "direction is 'up'; expected forward or backward"),
        (lambda: load_system("Vista").cost("gelu", (1,)), "shape has 1 values; gelu takes tokens, width"),
        (lambda: load_system("Vista").cost("gelu", {"m": 1}), "shape has m; gelu takes tokens, width"),
        (lambda: load_system("Vista").cost("gelu", (1, 1.5)), "width is 1.5; expected a whole number"),  # type: ignore[arg-type]
        (lambda: load_system("Vista").collective("reduce", 8, nodes=1, gpus_per_node=2), "collective is 'reduce'"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        ask()
    assert said in str(caught.value)


def test_a_missing_key_and_a_missing_file_are_python_s_own_errors(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="is missing"):
        predict({})
    with pytest.raises(FileNotFoundError, match=r"none\.yml does not exist"):
        predict(tmp_path / "none.yml")


def test_the_package_offers_functions_without_importing_them() -> None:
    script = (
        "import sys, predictor; wings = 'predictor.core.base.wings';"  # and its packages, which hold nothing
        "before = {n for n in sys.modules if n.startswith('predictor.') and not wings.startswith(n)};"
        "from predictor.layout_search.answer import search as inner; from predictor import search;"
        "import predictor.layout_search.rank; print(before, predictor.search is search, search is not inner)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set() True True\n"
    assert set(predictor.__all__) <= set(dir(predictor))
    for function in (predict, search, compare, load_system):
        assert isinstance(function, FunctionType)
        assert getattr(predictor, function.__name__) is function
    with pytest.raises(AttributeError, match="module 'predictor' has no attribute 'predicts'"):
        _ = predictor.predicts  # type: ignore[attr-defined]
