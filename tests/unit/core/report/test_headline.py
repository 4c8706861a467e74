"""What speaks against a prediction stands beside its time, and limits are held against it."""

from __future__ import annotations

from typing import Any

import yaml

from predictor import predict, search
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.predict.prediction import StepPrediction
from predictor.core.report.page.page import page
from predictor.core.step.highest_mfu import published_mfus
from predictor.layout_search.model_options import of_model

A100 = "NVIDIAA100-SXM4-80GB"
ASKED: dict[str, Any] = {"system": "A100_SXM", "global_batch_size": 1024, "framework": "megatron", "top": 2}


def _of_13b(system: str) -> StepPrediction:
    return predict(of_model("llama2-13b", ["gpus=128", "global_batch_size=1024", "training.conditions=model"], system))


def test_an_mfu_above_every_published_run_says_so_and_names_other_systems_of_the_gpu() -> None:
    for system, others in (("A100_SXM", "Perlmutter, Selene"), ("Selene", "A100_SXM, Perlmutter")):
        prediction = _of_13b(system)
        alike = (row for row in published_mfus() if row.gpu == A100 and "bf16" in row.precisions)
        (highest,) = (row for row in alike if not row.experts)
        assert prediction.mfu > highest.mfu
        (said,) = (sentence for sentence in prediction.headline if sentence.startswith("MFU"))
        runs = f"none of {highest.rows} published runs of dense models on this GPU in bf16"
        assert said.startswith(f"MFU {prediction.mfu:.1%}: {runs}")
        assert f"exceeds {highest.mfu:.1%} (llm-foundry on 8 GPUs, github:mosaicml/llm-foundry)." in said
        assert said.endswith(f"Other systems of this GPU: {others}; compare --system NAME.")
        assert prediction.to_dict()["published_mfu"]["is_exceeded"] is True
        assert said in page(prediction.prediction, prediction.loaded, "")


def test_an_mfu_that_was_reached_says_nothing() -> None:
    prediction = _of_13b("Perlmutter")
    assert not [sentence for sentence in prediction.headline if sentence.startswith("MFU")]
    entry = prediction.to_dict()["published_mfu"]
    assert (entry["is_exceeded"], entry["framework"]) == (False, "llm-foundry")


def test_a_dense_model_is_not_held_against_mixtures_of_experts() -> None:
    (of_h200,) = (row for row in published_mfus() if row.gpu == "NVIDIAH200" and "bf16" in row.precisions)
    assert of_h200.experts
    prediction = _of_13b("H200")
    assert prediction.mfu > of_h200.mfu
    assert not [sentence for sentence in prediction.headline if sentence.startswith("MFU")]
    assert prediction.to_dict().get("published_mfu") is None


def test_a_search_says_it_of_its_fastest_layout() -> None:
    result = search("llama2-13b", 128, **ASKED, changes=["training.conditions=model"])
    (said,) = (note for note in result.notes if note.startswith("Layout 1: MFU"))
    text = result.text(width=1000)
    assert text.index(said) < text.index("#  ")


def test_the_table_of_published_mfus_names_published_gpus_once() -> None:
    hardware = (yaml.safe_load((REGRESSORS_FOLDER / name / "system.yaml").read_text("utf-8")) for name in systems())
    gpus = {content["gpu"]["name"] for content in hardware}
    keys = [(row.gpu, precision, row.experts) for row in published_mfus() for precision in row.precisions]
    assert len(keys) == len(set(keys))
    assert {gpu for gpu, _, _ in keys} <= gpus
    assert all("http" in row.source or row.source.startswith("github:") for row in published_mfus())
