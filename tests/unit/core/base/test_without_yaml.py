"""Questions without a configuration file: a model by name, options, ``--set``, and a system as plain YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from predictor import predict, search
from predictor.__main__ import main
from predictor.core.base.errors import ConfigError, NoLayoutError
from predictor.core.plan.framework_rules import MEGATRON
from predictor.core.schema.settings import Setting, parse_setting, with_settings
from predictor.layout_search import answer as searching
from predictor.layout_search.answer import SearchAnswer
from predictor.layout_search.question import SearchProblem
from tests.unit.examples import full_form, short_form, write

LLAMA = ("predict", "--model", "llama3-8b", "--system", "H100", "--gpus", "64", "--global-batch-size", "256")


def answered(capsys: pytest.CaptureFixture[str], *command: str) -> dict[str, object]:
    assert main([*command, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert isinstance(content, dict)
    return content


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(command) == 2
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def time_us(content: dict[str, object]) -> float:
    step = content["step"]
    assert isinstance(step, dict)
    return float(step["time_us"])


def test_without_a_layout_it_is_the_fastest_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {"global_batch_size": 256, "system": "H100", "top": 1, "framework": "megatron"}
    found = search("llama3-8b", 64, **asked, changes=["training.conditions=ordinary"]).layouts[0]
    content = answered(capsys, *LLAMA)
    assert time_us(content) == found.step.us
    said = " ".join(map(str, content["notes"]))  # type: ignore[call-overload]
    assert "No layout was given: this is the fastest that fits of those that Megatron-LM runs" in said


def test_where_megatron_has_no_layout_the_next_framework_runs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = searching.search

    def without_megatron(problem: SearchProblem, *rest: Any) -> SearchAnswer:
        if problem.space.rules is MEGATRON:
            raise NoLayoutError("no layout fits: none of Megatron-LM's", divides=True)
        return usual(problem, *rest)

    monkeypatch.setattr(searching, "search", without_megatron)
    assert "of those that torchtitan runs" in " ".join(map(str, answered(capsys, *LLAMA)["notes"]))  # type: ignore[call-overload]
    assert main([*LLAMA, "--framework", "megatron"]) == 2
    assert "none of Megatron-LM's" in capsys.readouterr().err


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_a_named_framework_runs_the_layout(framework: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"global_batch_size": 256, "system": "H100", "framework": framework}
    found = search("llama3-8b", 64, top=1, **asked).layouts[0]  # type: ignore[arg-type]
    assert time_us(answered(capsys, *LLAMA, "--framework", framework)) == found.step.us


def test_a_layout_by_options_is_that_of_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "fastest.yml"
    assert main(["search", *LLAMA[1:], "--max-tensor-parallel", "4", "--top", "1", "--write", str(written)]) == 0
    capsys.readouterr()
    options = ("--tp", "2", "--micro-batch-size", "1", "--set", "sequence_parallel=true", "--set", "zero_stage=1")
    by_options = time_us(answered(capsys, *LLAMA, *options))
    keys = "tensor_parallel_size=2 context_parallel_size=1 sequence_parallel=true zero_stage=1 micro_batch_size=1"
    keys += " virtual_pipeline_parallel_size=1 pipeline_parallel_size=1 recompute=none global_batch_size=256 gpus=64"
    sets = [word for key in keys.split() for word in ("--set", key)]
    assert by_options == pytest.approx(time_us(answered(capsys, "predict", str(written), *sets)), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (LLAMA[:5], "--gpus is missing"),
        (LLAMA[:7], "--global-batch-size is missing"),
        ((*LLAMA, "--tp", "2"), "--micro-batch-size is missing beside tensor_parallel_size"),
        ((*LLAMA[:7], "--tp", "2", "--micro-batch-size", "1"), "--global-batch-size is missing"),
        ((*LLAMA, "--tp", "7", "--micro-batch-size", "1"), "gpus is 64; a replica takes 7 GPUs"),
        ((*LLAMA[:3], *LLAMA[5:]), "--system is missing"),
        (LLAMA[:3], "--gpus is missing: how many GPUs does the run take?\n  --global-batch-size is missing"),
        ((*LLAMA, "--gpus", "many"), "expected a whole number"),
    ],
)
def test_what_nobody_can_guess_is_asked_for(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, *options)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("training.recompute=full", ("training", "recompute")),
        ("recompute=full", ("training", "recompute")),
        ("model.moe.num_experts=full", ("model", "moe", "num_experts")),
    ],
)
def test_keys_are_dotted_or_by_their_own_name(key: str, path: tuple[str, ...]) -> None:
    assert parse_setting(key) == Setting(path, "full")


def test_values_are_those_of_a_file() -> None:
    assert parse_setting("overlap_parameter_gather=true").value is True
    assert parse_setting("train_tokens=1e12").value == 1e12
    assert parse_setting("layers_per_stage=[3, 5]").value == [3, 5]


def test_one_way_to_say_the_batch_replaces_the_other() -> None:
    content = {"training": {"num_micro_batches": 8, "micro_batch_size": 1}}
    changed = with_settings(content, [parse_setting("global_batch_size=64")])
    assert changed["training"] == {"num_micro_batches": None, "micro_batch_size": 1, "global_batch_size": 64}


@pytest.mark.parametrize("text", ["recomputation=full", "recompute", "training.recompute.x=1", "training=3"])
def test_unknown_keys_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no key|expected KEY=VALUE"):
        parse_setting(text)


def test_a_key_given_twice_is_refused() -> None:
    settings = [parse_setting("recompute=full"), parse_setting("training.recompute=none")]
    with pytest.raises(ConfigError, match=r"training\.recompute twice"):
        with_settings({}, settings)


@pytest.mark.parametrize("content", [full_form(), short_form()], ids=["full", "short"])
def test_whatif_changes_training_beside_hardware(
    content: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(content, tmp_path / "c.yml")
    changes = ("--set", "num_micro_batches=32", "--set", "inter_node_gb_per_s=x2")
    both = answered(capsys, "whatif", str(path), *changes)["compared"]
    assert isinstance(both, list)
    before, after = both
    assert after["name"] == "num_micro_batches=32, inter_node_gb_per_s=x2"
    assert after["prediction"]["step"]["time_us"] > before["prediction"]["step"]["time_us"]


def test_python_takes_the_same_changes(tmp_path: Path) -> None:
    path = write(full_form(), tmp_path / "c.yml")
    changed = predict(path, hardware={"training.num_micro_batches": 32, "memory_gib": 40})
    assert changed.run.num_micro_batches == 32
    assert changed.loaded.system.hardware.gpu.memory_gib is not None
    assert changed.loaded.system.hardware.gpu.memory_gib.value == 40
    assert changed.on("Vista").run.num_micro_batches != 32


def test_a_search_takes_changes_too(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("search", *LLAMA[1:], "--top", "1")
    plain = answered(capsys, *question)
    slower = answered(capsys, *question, "--set", "peak_tflop_per_s=x0.5", "--set", "model.sequence_length=4096")
    assert slower["layouts"][0]["time_us"] != plain["layouts"][0]["time_us"]  # type: ignore[index]
    assert any("On changed hardware (peak_tflop_per_s=x0.5)" in note for note in slower["notes"])  # type: ignore[attr-defined]
    as_option = answered(capsys, *question, "--sequence-length", "4096")
    by_set = answered(capsys, *question, "--set", "sequence_length=4096")
    assert by_set["layouts"] == as_option["layouts"]


@pytest.mark.parametrize("change", ["tensor_parallel_size=2", "gpus=8", "recompute=full", "micro_batch_size=1"])
def test_a_search_decides_the_layout_itself(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the search decides it" in refused(capsys, "search", *LLAMA[1:], "--set", change)


def test_names_are_forgiving_of_case(capsys: pytest.CaptureFixture[str]) -> None:
    spelled = [word.replace("llama3-8b", "Llama3-8B").replace("H100", "h100") for word in LLAMA]
    assert answered(capsys, *spelled)["step"] == answered(capsys, *LLAMA)["step"]
    assert predict(full_form(training={"precision": "FP16", "recompute": "Full"})).run.recompute == "full"


def test_a_gpu_points_to_its_systems(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [word.replace("H100", "our-A100") for word in LLAMA]
    assert "That is the GPU of A100_40, A100_SXM, Perlmutter and Selene: name one of them." in refused(capsys, *wrong)


def own(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_system_like_another_is_that_other(tmp_path: Path) -> None:
    same = predict(full_form(system=own(tmp_path, "like: Perlmutter\n")))
    assert same.system == "mine"
    assert same.step == predict(full_form(system="Perlmutter")).step


def test_a_system_of_ones_own_has_its_numbers(tmp_path: Path) -> None:
    text = "like: Perlmutter\nname: ours\ninter_node_gb_per_s: 200\ngpu: {memory_gib: {value: 40, source: A40}}\n"
    layout = {"data_parallel_size": 8}
    ours = predict(full_form(system=own(tmp_path, text), parallelism=layout))
    assert ours.system == "ours"
    assert ours.loaded.system.hardware.links.inter_node_gb_per_s.value == 200
    assert ours.loaded.system.hardware.gpu.memory_gib is not None
    assert ours.loaded.system.hardware.gpu.memory_gib.source == "A40"
    assert ours.step.us < predict(full_form(system="Perlmutter", parallelism=layout)).step.us


def test_a_system_of_ones_own_has_the_hosts_memory_that_it_says(tmp_path: Path) -> None:
    offloaded = {"micro_batch_size": 1, "num_micro_batches": 4, "offload_optimizer": 1.0}
    as_like, slower = (
        predict(full_form(system=own(tmp_path, text), training=offloaded)).step.us
        for text in ("like: Perlmutter\n", "like: Perlmutter\nhost_memory_gb_per_s: 50\n")
    )
    assert as_like == predict(full_form(system="Perlmutter", training=offloaded)).step.us
    assert slower > as_like


def test_a_higher_peak_scales_all_precisions(tmp_path: Path) -> None:
    text = "like: H100\ngpu: {peak_tflop_per_s: 495}\n"
    slower = predict(full_form(system=own(tmp_path, text)))
    peaks = slower.loaded.system.hardware.gpu.peak_tflop_per_s
    whole = predict(full_form(system="H100")).loaded.system.hardware.gpu.peak_tflop_per_s
    ratio = 495 / whole["bf16"].value
    assert peaks["fp8"].value == pytest.approx(whole["fp8"].value * ratio)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("like: nothing\n", "nothing is not a published system"),
        ("liike: H100\n", "mine.yaml: liike is not a known key"),
        ("like: H100\nmemory: 3\n", "mine.yaml: memory is not a known key"),
        ("like: H100\ngpu: {memory_gib: -1}\n", "mine.yaml: gpu.memory_gib"),
        ("like: GB200\ngpus_per_node: 7\n", "a domain holds whole nodes"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        predict(full_form(system=own(tmp_path, text)))
