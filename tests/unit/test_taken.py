"""Defaults that a configuration takes silently are named with the answer, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from predictor import compare, predict, search
from predictor.__main__ import main
from predictor.base.bundled import EXAMPLES_FOLDER
from predictor.interface.model_options import of_model
from tests.unit.examples import write

TOKENS = {"micro_batch_size": 1, "global_batch_size": 256}
SILENT: dict[str, Any] = {
    "system": "H100",
    "model": "llama3-8b",
    "parallelism": {"tensor_parallel_size": 2, "data_parallel_size": 32},
    "training": TOKENS,
}
OPTIONS = ["gpus=64", "tensor_parallel_size=2", "micro_batch_size=1", "global_batch_size=256"]


def sentence(prediction: Any) -> list[str]:
    return [said for said in prediction.headline if said.startswith("Taken")]


def test_a_file_names_its_defaults_and_the_time_of_the_same_run_as_options() -> None:
    of_file, of_options = predict(SILENT), predict(of_model("llama3-8b", OPTIONS, "H100"))
    assert of_file.step.us > 1.2 * of_options.step.us
    taken = of_file.to_dict()["taken"]
    assert taken["usual_time_us"] == pytest.approx(of_options.step.us)
    assert taken["keys"]["training.precision"] == {"taken": "fp16", "usual": "bf16"}
    assert {"model.normalization", "parallelism.overlap_tensor_parallel"} <= taken["keys"].keys()
    (said,) = sentence(of_file)
    assert "training: precision fp16" in said
    assert said.endswith("which --model takes, the step takes 3.528 s.")
    assert sentence(of_options) == []
    assert of_options.to_dict()["taken"] is None


def test_what_is_said_is_not_named_and_what_does_not_count_neither() -> None:
    said = {**SILENT, "training": {**TOKENS, "precision": "bf16"}}
    assert "precision" not in sentence(predict(said))[0]
    alone = {**SILENT, "parallelism": {"data_parallel_size": 64}}
    assert "overlap_tensor_parallel" not in sentence(predict(alone))[0]


def test_a_configuration_that_says_all_names_nothing() -> None:
    taken = predict(SILENT).loaded.taken()
    assert taken is not None
    whole: dict[str, Any] = {**SILENT, "model": {"preset": "llama3-8b"}, "training": dict(TOKENS)}
    whole["parallelism"] = dict(SILENT["parallelism"])
    for name, (value, _) in taken.keys.items():
        section, key = name.split(".")
        if value is not None:
            whole[section][key] = value
    whole["parallelism"]["gradient_reduction"] = "all_reduce"
    # The same run, each of its defaults said.
    prediction = predict(whole)
    assert prediction.step.us == pytest.approx(predict(SILENT).step.us)
    assert sentence(prediction) == []


def test_a_change_is_said() -> None:
    changed = predict(SILENT, hardware={"training.precision": "bf16", "model.fused_rope": "true"})
    (said,) = sentence(changed)
    assert "precision" not in said
    assert "fused_rope" not in said
    assert "normalization rms_norm" in said
    assert changed.to_dict()["taken"]["usual_time_us"] == predict(SILENT).to_dict()["taken"]["usual_time_us"]


def test_a_framework_is_held_against_its_own_defaults() -> None:
    sharded = {"data_parallel_size": 64, "zero_stage": 3, "overlap_gradient_reduction": True}
    eager: dict[str, Any] = {**SILENT, "parallelism": sharded, "training": {**TOKENS, "framework": "torchtitan"}}
    (said,) = sentence(predict(eager))
    assert "compiled false" in said
    assert "As torchtitan trains in bf16, compiled" in said
    # Software that no option names has no such defaults.
    assert sentence(predict({**eager, "training": {**TOKENS, "framework": "llm-foundry"}})) == []


def test_the_short_form_and_other_tools_decide_what_they_do_not_say(tmp_path: Path) -> None:
    assert sentence(predict(EXAMPLES_FOLDER / "llemma_7b_4_2_2_P.yml")) == []
    script = Path(__file__).resolve().parents[2] / "docs" / "gallery" / "launch.sh"
    taking: dict[str, Any] = {"system": "H100", "from": str(script), "model": {"vocab_size": 128256}}
    assert sentence(predict(taking)) == []
    assert sentence(predict(write(taking, tmp_path / "c.yml"), hardware={"training.recompute": "full"})) == []
    assert sentence(predict(of_model(str(script), ["vocab_size=128256"], "H100"))) == []


def test_check_compare_and_search_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(SILENT, tmp_path / "c.yml"))
    assert main(["check", path, "--max-step-s", "100"]) == 0
    assert "Taken, since the configuration does not say:" in capsys.readouterr().out
    assert str(compare([path], systems=["H200"])).count("Taken, since") == 1
    notes = search(path, 64, global_batch_size=256, top=1).notes
    assert [note for note in notes if note.startswith("Taken, since")]
    for model, framework in ((path, "megatron"), ("llama3-8b", None)):
        asked: dict[str, Any] = {"system": "H100", "global_batch_size": 256, "framework": framework, "top": 1}
        assert not [note for note in search(model, 64, **asked).notes if note.startswith("Taken, since")]


def test_a_file_as_model_is_a_file(tmp_path: Path) -> None:
    path = str(write(SILENT, tmp_path / "c.yml"))
    (said,) = sentence(predict(of_model(path, ["tensor_parallel_size=4", "data_parallel_size=16"])))
    assert "normalization rms_norm" in said
