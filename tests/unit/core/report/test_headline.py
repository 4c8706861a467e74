"""What speaks against a prediction stands beside its time, and limits are held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor import predict, search
from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.base.errors import ConfigError
from predictor.core.predict.prediction import StepPrediction
from predictor.core.report.page.page import page
from predictor.core.step.highest_mfu import published_mfus
from predictor.search.model_options import of_model
from predictor.serving.requests import answer_predict, answer_search
from tests.unit.examples import write

A100 = "NVIDIAA100-SXM4-80GB"
# Published runs of torchtitan in bf16 took much longer than predicted.
TORCHTITAN: dict[str, Any] = {
    "system": "H100",
    "model": "llama3-8b",
    "parallelism": {"data_parallel_size": 64, "zero_stage": 3, "overlap_gradient_reduction": True},
    "training": {"framework": "torchtitan", "precision": "bf16", "micro_batch_size": 1, "num_micro_batches": 1},
    "budget": {"train_tokens": 1e12, "price_per_gpu_hour": 2.5},
}
PLAIN = {"precision": "fp16", "micro_batch_size": 1, "num_micro_batches": 8}
SEARCHED: dict[str, Any] = {
    "system": "H100",
    "global_batch_size": 512,
    "framework": "torchtitan",
    "train_tokens": 1e12,
    "price": 2.0,
    "top": 3,
}


def test_the_sentence_on_published_runs_stands_directly_below_the_time() -> None:
    prediction = predict(TORCHTITAN)
    assert prediction.published_ratio is not None
    assert prediction.published_ratio > 1.2
    first, second, *others = prediction.text(width=1000).splitlines()
    assert first.startswith("Step time")
    assert second.strip() == prediction.headline[0]
    assert second.strip().startswith("Published runs of torchtitan")
    assert f"At their ratio, {prediction.published_ratio:.2f}, the step takes" in second
    assert f"{prediction.budget.days * prediction.published_ratio:.1f} days" in second
    assert not any("Published runs" in line for line in others)


def test_json_and_page_say_it_too() -> None:
    prediction = predict(TORCHTITAN)
    document = prediction.to_dict()
    entry = document["published_runs"]
    assert entry["ratio"] == prediction.published_ratio
    assert entry["time_us"] == pytest.approx(document["step"]["time_us"] * entry["ratio"])
    assert entry["source"] in document["notes"]
    assert entry["rows"] >= 3
    assert answer_predict({"configuration": TORCHTITAN})["published_runs"] == entry
    told = page(prediction.prediction, prediction.loaded, "")
    assert told.count("Published runs of torchtitan") == 1
    assert told.index("Published runs of torchtitan") < told.index("Where the step goes")


def test_a_run_of_which_nothing_is_published_says_nothing() -> None:
    prediction = predict({**TORCHTITAN, "system": "Perlmutter", "parallelism": {"zero_stage": 0}, "training": PLAIN})
    assert prediction.published_ratio is None
    assert not any(sentence.startswith("Published") for sentence in prediction.headline)
    assert prediction.to_dict()["published_runs"] is None
    assert "Published runs" not in prediction.text()


def test_check_fails_where_the_corrected_time_breaks_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(TORCHTITAN, tmp_path / "c.yml"))
    prediction = predict(path)
    days, ratio = prediction.budget.days, prediction.published_ratio
    assert ratio is not None
    assert main(["check", path, "--max-days", repr(days * ratio * 1.001)]) == 0
    capsys.readouterr()
    assert main(["check", path, "--max-days", repr(days * 1.001), "--min-mfu", "0.001"]) == 3
    _, sentence, mfu, broken, _ = capsys.readouterr().out.splitlines()
    assert sentence.strip() == prediction.headline[0]
    assert mfu.strip().startswith("ok    min_mfu")
    assert broken.strip().startswith("FAIL  max_days")
    assert f"{days:.6g}" in broken
    assert f"{days * ratio:.6g}" in broken
    assert main(["check", path, "--max-days", repr(days * 1.001), "--json"]) == 3
    (checked,) = json.loads(capsys.readouterr().out)["checks"]
    assert checked["headline"] == list(prediction.headline)
    assert checked["rules"][0]["corrected"] == pytest.approx(days * ratio)


def test_runs_that_came_out_shorter_make_no_limit_looser(tmp_path: Path) -> None:
    shorter = {**TORCHTITAN, "system": "A100_SXM", "training": {**TORCHTITAN["training"], "framework": "llm-foundry"}}
    path = str(write(shorter, tmp_path / "c.yml"))
    prediction = predict(path)
    assert prediction.published_ratio is not None
    assert prediction.published_ratio < 1.0
    assert main(["check", path, "--max-step-s", repr(prediction.step.us / 1e6 * 0.999)]) == 3


def test_a_deadline_is_met_at_the_ratio_of_published_runs() -> None:
    result = search("llama3-8b", **SEARCHED, deadline_days=20)
    for layout in result.layouts:
        assert layout.training is not None
        assert layout.training.longest_hours <= 20 * 24
    almost = [count for count in result.counts if "at the ratio of published runs" in count.verdict]
    assert almost
    for count in almost:
        assert count.training is not None
        assert count.training.days <= 20 < count.training.longest_hours / 24
        assert count.num_gpus < result.num_gpus
    first = next(line for line in result.text().splitlines() if line.startswith("Published runs"))
    assert result.text().index(first) < result.text().index("#  ")


def test_a_budget_is_kept_at_the_ratio_of_published_runs() -> None:
    cheapest = search("llama3-8b", 64, **SEARCHED).layouts[0].training
    assert cheapest is not None
    assert cheapest.price is not None
    assert cheapest.highest_price is not None
    between = (cheapest.price + cheapest.highest_price) / 2.0
    said = r"costs [\d,]+, [\d,]+ at the ratio of published runs, more than"
    with pytest.raises(ConfigError, match=said):
        search("llama3-8b", 64, **SEARCHED, max_price=between)
    with pytest.raises(ConfigError, match=said):
        search("llama3-8b", **SEARCHED, budget=between, max_gpus=64)


def test_layouts_that_only_the_ratio_leaves_out_are_counted() -> None:
    every = [layout.training for layout in search("llama3-8b", 64, **SEARCHED).layouts]
    first, *_, last = (training.longest_hours for training in every if training is not None)
    assert first < last
    kept = search("llama3-8b", 64, **SEARCHED, max_hours=first * 1.0001)
    assert any(note.startswith("Left out: 2 layouts that would break the limit") for note in kept.notes)


def test_the_search_over_http_has_the_ratio_of_every_layout() -> None:
    options = {key: SEARCHED[key] for key in ("global_batch_size", "framework", "train_tokens")}
    document = answer_search({"model": "llama3-8b", "gpus": 64, "system": "H100", "options": options, "top": 2})
    for layout in document["layouts"]:
        training = layout["training"]
        assert training["corrected_hours"] == pytest.approx(training["hours"] * layout["published_ratio"])


def _of_13b(system: str) -> StepPrediction:
    return predict(of_model("llama2-13b", ["gpus=128", "global_batch_size=1024"], system))


def test_an_mfu_above_every_published_run_says_so_and_names_other_systems_of_the_gpu() -> None:
    for system, others in (("A100_SXM", "Perlmutter, Selene"), ("Selene", "A100_SXM, Perlmutter")):
        prediction = _of_13b(system)
        (highest,) = (row for row in published_mfus() if row.gpu == A100 and "bf16" in row.precisions)
        assert prediction.mfu > highest.mfu
        (said,) = (sentence for sentence in prediction.headline if sentence.startswith("MFU"))
        assert said.startswith(f"MFU {prediction.mfu:.1%}: none of {highest.rows} published runs of this GPU in bf16")
        assert f"exceeds {highest.mfu:.1%} (llm-foundry on 8 GPUs, github:mosaicml/llm-foundry)." in said
        assert said.endswith(f"Other systems of this GPU: {others}; compare --system NAME.")
        assert prediction.to_dict()["published_mfu"]["is_exceeded"] is True
        assert said in page(prediction.prediction, prediction.loaded, "")


def test_an_mfu_that_was_reached_says_nothing() -> None:
    prediction = _of_13b("Perlmutter")
    assert not [sentence for sentence in prediction.headline if sentence.startswith("MFU")]
    entry = prediction.to_dict()["published_mfu"]
    assert (entry["is_exceeded"], entry["framework"]) == (False, "llm-foundry")


def test_a_search_says_it_of_its_fastest_layout() -> None:
    result = search("llama2-13b", 128, system="A100_SXM", global_batch_size=1024, framework="megatron", top=2)
    (said,) = (note for note in result.notes if note.startswith("Layout 1: MFU"))
    text = result.text(width=1000)
    assert text.index(said) < text.index("#  ")


def test_the_table_of_published_mfus_names_published_gpus_once() -> None:
    hardware = (yaml.safe_load((REGRESSORS_FOLDER / name / "system.yaml").read_text("utf-8")) for name in systems())
    gpus = {content["gpu"]["name"] for content in hardware}
    keys = [(row.gpu, precision) for row in published_mfus() for precision in row.precisions]
    assert len(keys) == len(set(keys))
    assert {gpu for gpu, _ in keys} <= gpus
    assert all("http" in row.source or row.source.startswith("github:") for row in published_mfus())
