"""What runs like this one took beyond their modelled time is part of the step, its interval and everything from it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from predictor import predict, search
from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import open_system
from predictor.core.plan.loading import Loaded, prepare
from predictor.core.step.breakdown import stage_parts
from predictor.core.step.discrepancy import (
    ALL,
    OF_THE_CLUSTER,
    ORDINARY,
    RUN_NOISE,
    UNMEASURED,
    Discrepancy,
    deviation_of,
    discrepancy,
    discrepancy_model,
    generation,
    operators_deviation,
    terms_of,
)
from predictor.core.step.prediction import predict as predict_run
from predictor.core.workload.run_choices import Conditions
from predictor.core.workload.software import TUNED, Framework
from tests.unit.examples import full_form, write

MODEL = discrepancy_model()


def loaded(system: str = "H100", **training: Any) -> Loaded:
    content = full_form(
        system=system, parallelism={"data_parallel_size": 8}, training={"precision": "bf16", **training}
    )
    return prepare(content, Path.cwd())


def found(system: str = "H100", host_share: float = 0.0, operators: float = 0.05, **training: Any) -> Discrepancy:
    run, published, *_ = loaded(system, **training)
    result = discrepancy(run, published, host_share, operators)
    assert result is not None
    return result


def test_the_covariance_of_the_terms_is_one() -> None:
    size = len(MODEL.means)
    whole = np.zeros((size, size))
    for i, row in enumerate(MODEL.covariance):
        assert len(row) == i + 1
        whole[i, : i + 1] = whole[: i + 1, i] = row
    assert np.linalg.eigvalsh(whole).min() > -1e-6
    for name, place in MODEL.places.items():
        assert MODEL.variance((name, "framework pytorch")) >= whole[place, place] * (1.0 - 1e-9)


def test_every_published_gpu_has_a_generation_and_the_tuned_frameworks_have_rows() -> None:
    contents = (REGRESSORS_FOLDER / name / "system.yaml" for name in systems())
    gpus = {yaml.safe_load(path.read_text(encoding="utf-8"))["gpu"]["name"] for path in contents}
    assert not {gpu for gpu in gpus if generation(gpu) == gpu}
    assert {each.framework for each in MODEL.runs if not each.ordinary and each.framework} <= TUNED
    assert {None} < {each.framework for each in MODEL.runs if not each.ordinary}


def test_a_run_has_the_terms_of_its_kind() -> None:
    run, system, *_ = loaded(framework="torchtitan", gemm_recipe="fp8_tensorwise")
    assert terms_of(run, system, False) == (
        ALL,
        "low precision",
        "framework torchtitan",
        "tables Hopper",
    )
    plain = replace(run, framework=None, gemm_recipe=None)
    volta, cluster = (open_system(REGRESSORS_FOLDER / name, "fp16") for name in ("V100", "Vista"))
    assert terms_of(plain, volta, True) == (ALL, ORDINARY, UNMEASURED, "tables Volta")
    assert terms_of(plain, cluster, False) == (ALL, OF_THE_CLUSTER)


@pytest.mark.parametrize(
    ("training", "conditions"),
    [
        ({}, Conditions.ORDINARY),
        ({"framework": "pytorch"}, Conditions.ORDINARY),
        ({"framework": "transformers"}, Conditions.ORDINARY),
        ({"framework": "nemo"}, Conditions.TUNED),
        ({"framework": "nemo", "conditions": "ordinary"}, Conditions.ORDINARY),
        ({"conditions": "tuned"}, Conditions.TUNED),
    ],
)
def test_a_run_is_tuned_only_where_its_framework_is_named_and_has_tuned_runs(
    training: dict[str, Any], conditions: Conditions
) -> None:
    assert loaded(**training).run.conditions is conditions
    assert found(**training).conditions is conditions


def test_the_model_alone_answers_where_nothing_published_tells(tmp_path: Path) -> None:
    run, system, *_ = loaded(conditions="model")
    assert discrepancy(run, system, 0.0, 0.05) is None
    prediction = predict_run(run, system)
    assert prediction.step.us == prediction.modelled_us
    assert stage_parts(prediction)[0].not_modelled_us == 0.0
    ordinary = replace(run, conditions=Conditions.ORDINARY)
    calibrated = system.hardware.model_copy(update={"calibration": "its own runs"})
    assert discrepancy(ordinary, _with(system, calibrated), 0.0, 0.05) is None
    processors = system.hardware.links.model_copy(update={"engine": "processor"})
    assert (
        discrepancy(ordinary, _with(system, system.hardware.model_copy(update={"links": processors})), 0.0, 0) is None
    )


def _with(system: Any, hardware: Any) -> Any:
    """Return what ``discrepancy`` reads of a system, with other hardware."""

    class Other:
        gpu, has_own_operators = system.gpu, True

    other = Other()
    other.hardware = hardware  # type: ignore[attr-defined]
    return other


def test_point_and_interval_come_from_one_distribution() -> None:
    told = found(framework="nemo")
    step = told.applied(Cost(100.0, 90.0, 120.0, Source.ANALYTIC))
    assert step.us == pytest.approx(100.0 * exp(told.log_mean))
    assert (step.low_us, step.high_us) == pytest.approx((100.0 * exp(told.low_log), 100.0 * exp(told.high_log)))
    run, system, *_ = loaded(framework="nemo")
    terms = terms_of(run, system, False)
    deviation = deviation_of(MODEL, terms, run.framework, 0.0, 0.05)
    assert told.log_mean == pytest.approx(sum(MODEL.means[name] for name in terms))
    assert told.low_log == pytest.approx(told.log_mean + MODEL.low * deviation)
    assert told.high_log == pytest.approx(told.log_mean + MODEL.high * deviation)
    assert told.low_log < told.log_mean - RUN_NOISE


def test_less_evidence_makes_a_wider_interval() -> None:
    def width(**given: Any) -> float:
        told = found(**given)
        return told.high_log - told.low_log

    known = width(framework="nemo")
    assert width(framework="nemo", conditions="ordinary") > known
    assert width(framework="nemo", operators=0.3) > known
    assert width(framework="nemo", host_share=0.5) > known
    assert width(framework="deepspeed", conditions="tuned") > known
    terms = (ALL, "tables Hopper")
    assert MODEL.variance((*terms, "framework nemo")) < MODEL.variance((*terms, "framework of tomorrow"))
    assert MODEL.variance(("all", "framework nemo", "tables of tomorrow")) > MODEL.variance((*terms, "framework nemo"))


def test_a_sure_update_does_not_widen_a_step() -> None:
    step, closing = Cost(100.0, 60.0, 400.0, Source.ANALYTIC), Cost(20.0, 2.0, 300.0, Source.ANALYTIC)
    assert operators_deviation(step, closing) == pytest.approx(log(120.0 / 78.0) / 2.0 / 1.645)
    assert operators_deviation(step, Cost(120.0, -50.0, 900.0, Source.ANALYTIC)) == 0.0


def test_ordinary_runs_take_longer_and_both_times_are_told(tmp_path: Path) -> None:
    content = full_form(system="H100", parallelism={"data_parallel_size": 8}, training={"precision": "bf16"})
    content["budget"] = {"train_tokens": 1e10, "price_per_gpu_hour": 2.0}
    ordinary = predict(content)
    tuned, model = (predict(content, hardware={"training.conditions": word}) for word in ("tuned", "model"))
    assert model.step.us < tuned.step.us < ordinary.step.us
    assert model.step.us == pytest.approx(ordinary.modelled_us)
    assert ordinary.budget.hours / model.budget.hours == pytest.approx(ordinary.step.us / model.step.us)
    assert ordinary.mfu < tuned.mfu
    first, second = ordinary.headline[:2]
    assert "as tuned benchmarks run, " in first
    assert first.endswith("as ordinary runs come out; training.conditions is ordinary.")
    assert second.startswith("Not modelled: +")
    assert "not modelled" in ordinary.text()
    entry = ordinary.to_dict()["not_modelled"]
    assert (entry["tuned_us"], entry["ordinary_us"]) == pytest.approx((tuned.step.us, ordinary.step.us))
    assert entry["modelled_us"] + entry["not_modelled_us"] == pytest.approx(ordinary.step.us)
    assert model.to_dict()["not_modelled"] is None
    assert not model.headline


def test_experts_that_are_shared_out_are_told_under_their_own_conditions_alone() -> None:
    experts = {"num_experts": 16, "experts_per_token": 2, "expert_ffn_hidden_size": 1024}
    content = full_form(system="H100", model={"moe": experts}, parallelism={"data_parallel_size": 8})
    content["training"] |= {"precision": "bf16"}
    whole = predict(content)
    content["parallelism"] |= {"expert_parallel_size": 8}
    shared = predict(content)
    assert shared.run.model.experts is not None
    assert shared.run.model.experts.load_imbalance is None
    assert "as tuned benchmarks run" in whole.headline[0]
    assert "as tuned benchmarks run" not in shared.headline[0]
    entry = shared.to_dict()["not_modelled"]
    assert entry["ordinary_us"] == pytest.approx(shared.step.us)
    assert "tuned_us" not in entry


def test_parts_of_every_stage_add_up_to_the_step() -> None:
    content = full_form(system="H100", parallelism={"pipeline_parallel_size": 2}, training={"precision": "bf16"})
    run, system, *_ = prepare(content, Path.cwd())
    prediction = predict_run(run, system)
    parts = stage_parts(prediction)
    for part in parts:
        assert part.not_modelled_us == pytest.approx(prediction.step.us - prediction.modelled_us)
    assert parts[prediction.critical_stage].step_us == pytest.approx(prediction.step.us)


def test_check_and_search_hold_limits_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = full_form(system="H100", parallelism={"data_parallel_size": 8}, training={"precision": "bf16"})
    path = str(write(content, tmp_path / "c.yml"))
    step = predict(path)
    between = repr((step.modelled_us + step.step.us) / 2e6)
    assert main(["check", path, "--max-step-s", between]) == 3
    assert main(["check", path, "--max-step-s", between, "--model-only"]) == 0
    capsys.readouterr()
    assert main(["predict", path, "--model-only", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["time_us"] == pytest.approx(step.modelled_us)
    asked: dict[str, Any] = {"system": "H100", "global_batch_size": 64, "top": 3}
    longer, shorter = (search("llama3-8b", 64, **asked, changes=changes) for changes in ((), CHANGED))
    for one, other in zip(longer.layouts, shorter.layouts, strict=True):
        assert one.layout == other.layout
        assert one.step.us > other.step.us


CHANGED = ("training.conditions=model",)


@pytest.mark.parametrize("framework", [Framework.NEMO, Framework.TRANSFORMERS, None])
def test_the_sentence_names_the_runs_behind_it(framework: Framework | None) -> None:
    told = MODEL.closest(framework, ordinary=framework is not Framework.NEMO)
    assert told.framework is framework
    kind = "tuned" if framework is Framework.NEMO else "ordinary"
    assert told.summary.startswith(f"published {kind} runs of {framework or 'any framework'} took ")
    assert f"({told.rows} row" in told.summary
