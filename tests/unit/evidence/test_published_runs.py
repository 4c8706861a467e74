"""Published runs of a software family make a prediction's interval, and its note says how they came out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import yaml
from predictor.core.step.families import (
    ENOUGH_ROWS,
    RUN_NOISE,
    Family,
    bounded_step,
    closest_family,
    families,
    family_of,
    interval_of,
    published_family,
    with_sure_update,
)
from predictor.core.step.published_runs import published_runs_note

from fitting.publish import seal
from predictor.__main__ import main
from predictor.core.base.bundled import REGRESSORS_FOLDER, systems
from predictor.core.costs.cost import Cost, Source
from predictor.core.costs.published import PublishedSystem
from predictor.core.plan.loading import prepare
from predictor.core.step.prediction import predict
from predictor.core.workload.run import TrainingRun
from predictor.core.workload.run_choices import GemmRecipe
from predictor.core.workload.software import Framework
from tests.unit.examples import full_form, write

SHARDED: dict[str, Any] = {"zero_stage": 2, "overlap_gradient_reduction": True}
A100 = "NVIDIAA100-SXM4-80GB"
FAMILY = Family(
    framework=Framework.NEMO,
    gpus=(A100,),
    experts=False,
    low_precision=False,
    blocking_launches=False,
    sharded=False,
    rows=20,
    configurations=20,
    fewest_gpus=8,
    most_gpus=64,
    most_host_share=0.1,
    mean_log=0.1,
    deviation=0.05,
    low_log=0.02,
    high_log=0.18,
    operator_log_error=0.2,
)


def run_of(system: str = "Perlmutter", training: dict[str, Any] | None = None, **layout: Any) -> TrainingRun:
    content = full_form(system=system, parallelism={"data_parallel_size": 4, **layout}, training=training or {})
    return prepare(content, Path.cwd()).run


def note(system: str = "Perlmutter", training: dict[str, Any] | None = None, **layout: Any) -> str | None:
    content = full_form(system=system, parallelism={"data_parallel_size": 4, **layout}, training=training or {})
    loaded = prepare(content, Path.cwd())
    return published_runs_note(predict(loaded.run, loaded.system), loaded.system)


@pytest.mark.parametrize("layout", [{}, {"zero_stage": 1}, SHARDED | {"data_parallel_size": 1}])
def test_a_plain_run_on_a_measured_system_needs_no_published_runs(layout: dict[str, Any]) -> None:
    assert note(**layout) is None
    loaded = prepare(full_form(parallelism={"data_parallel_size": 4, **layout}), Path.cwd())
    assert predict(loaded.run, loaded.system).family is None


@pytest.mark.parametrize("system", ["H100", "B200", "Vista"])
def test_a_plain_run_is_as_sure_as_published_runs_of_all_frameworks(system: str) -> None:
    content = full_form(system=system, training={"precision": "fp16" if system == "Vista" else "bf16"})
    loaded = prepare(content, Path.cwd())
    prediction = predict(loaded.run, loaded.system)
    assert prediction.family is not None
    assert prediction.family.framework is None
    assert prediction.family.rows >= ENOUGH_ROWS
    assert prediction.step.low_us < prediction.step.us < prediction.step.high_us
    assert prediction.step.high_us / prediction.step.low_us < 1.8
    said = published_runs_note(prediction, loaded.system)
    assert said is not None
    assert said.startswith("Published runs of any framework, on GPUs of this generation (")


def test_an_update_of_flat_buffers_does_not_widen_a_step() -> None:
    step, closing = Cost(100.0, 60.0, 400.0, Source.ANALYTIC), Cost(20.0, 2.0, 300.0, Source.ANALYTIC)
    assert with_sure_update(step, closing) == Cost(100.0, 78.0, 120.0, Source.ANALYTIC)
    assert with_sure_update(step, replace(closing, low_us=-50.0)).low_us == 100.0


def test_one_framework_is_no_evidence_of_all() -> None:
    content = full_form(parallelism={"data_parallel_size": 16, "zero_stage": 2}, training={"precision": "bf16"})
    content |= {"system": "MI300X"}
    content["training"] |= {"gemm_recipe": "fp8_delayed", "framework": "megatron-lm"}
    loaded = prepare(content, Path.cwd())
    prediction = predict(loaded.run, loaded.system)
    assert prediction.family is not None
    assert (prediction.family.framework, prediction.family.gpus) == (None, ())
    assert prediction.step.low_us < 0.9 * prediction.step.us


def test_a_framework_brings_its_own_errors() -> None:
    foundry = family_of(run_of(zero_stage=3, training={"framework": "llm-foundry"}), A100)
    anyone = family_of(run_of(zero_stage=3), A100)
    assert foundry is not None
    assert anyone is not None
    assert (foundry.framework, foundry.sharded) == ("llm-foundry", True)
    assert (anyone.framework, anyone.sharded) == (None, True)
    assert A100 in foundry.gpus


def test_a_framework_without_rows_is_like_any_framework() -> None:
    family = family_of(run_of(zero_stage=3, training={"framework": "deepspeed"}), A100)
    assert family is not None
    assert family.framework is None


def test_the_note_says_family_rows_and_error() -> None:
    said = note(zero_stage=3, training={"framework": "llm-foundry"})
    assert said is not None
    assert said.startswith("Published runs of llm-foundry with ZeRO-2/3 or FSDP, on GPUs of this generation (")
    assert said.endswith("the interval is theirs.")


def test_the_interval_is_that_of_the_family() -> None:
    step = Cost(100.0, 80.0, 125.0, Source.INTERPOLATED)
    bounded = interval_of(FAMILY, step)
    assert bounded.us == 100.0
    own = log(125.0 / 80.0) / 2.0
    half = (0.08**2 + own**2 - 0.2**2) ** 0.5
    assert bounded.low_us == pytest.approx(100.0 * exp(min(0.1 - half, -RUN_NOISE)))
    assert bounded.high_us == pytest.approx(100.0 * exp(0.1 + half))


def test_surer_operators_do_not_narrow_what_a_family_shows() -> None:
    sure, known = (interval_of(FAMILY, Cost(100.0, 100.0 / w, 100.0 * w, Source.MEASURED)) for w in (1.01, 1.1))
    assert (sure.low_us, sure.high_us) == (known.low_us, known.high_us)
    assert sure.high_us == pytest.approx(100.0 * exp(0.18))
    # The prediction stays inside by the noise of a run, though nearly all of the family's runs took longer.
    assert sure.low_us == pytest.approx(100.0 * exp(-RUN_NOISE))


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_few_configurations_leave_room_for_the_operators_error(side: float) -> None:
    low, high = sorted((side * 0.5, side * 0.9))
    few = FAMILY.model_copy(update={"configurations": 4, "low_log": low, "high_log": high})
    bounded = interval_of(few, Cost(100.0, 80.0, 125.0, Source.MEASURED))
    own = log(125.0 / 80.0) / 2.0
    half = (0.2**2 + max(0.0, own**2 - 0.2**2)) ** 0.5
    assert log(bounded.low_us / 100.0) == pytest.approx(-own if side > 0.0 else -0.7 - half)
    assert log(bounded.high_us / 100.0) == pytest.approx(own if side < 0.0 else 0.7 + half)


def test_a_prediction_has_the_interval_of_its_family() -> None:
    content = full_form(parallelism={"data_parallel_size": 4, "zero_stage": 3}, training={"framework": "llm-foundry"})
    loaded = prepare(content, Path.cwd())
    family = family_of(loaded.run, A100)
    assert family is not None
    step = predict(loaded.run, loaded.system).step
    assert step.low_us <= step.us * exp(min(family.low_log, 0.0)) * (1.0 + 1e-9)
    assert step.high_us >= step.us * exp(max(family.high_log, 0.0)) * (1.0 - 1e-9)


def test_a_gpu_with_operators_of_its_own_is_not_said_to_be_known_from_a_data_sheet(tmp_path: Path) -> None:
    shutil.copytree(REGRESSORS_FOLDER / "Perlmutter", tmp_path / "Own")
    hardware = tmp_path / "Own" / "system.yaml"
    donors = {"operators": "Vista", "intra_node": "Perlmutter", "inter_node": "Vista"}
    content = yaml.safe_load(hardware.read_text(encoding="utf-8")) | {"transfer": donors}
    hardware.write_text(yaml.safe_dump(content), encoding="utf-8")
    seal(tmp_path / "Own")
    run = run_of()
    own, selene = (PublishedSystem(folder, "fp16") for folder in (tmp_path / "Own", REGRESSORS_FOLDER / "Selene"))
    assert published_family(run, own, None) is None
    assert published_family(run, selene, None) is not None


def test_a_chip_without_rows_is_like_all_others() -> None:
    run = run_of("V100", gpus_per_node=4)
    family = closest_family(run, "a GPU without rows")
    assert family is not None
    assert (family.framework, family.gpus) == (None, ())


def test_families_name_gpus_that_are_published_and_hold_their_mean() -> None:
    contents = (REGRESSORS_FOLDER / name / "system.yaml" for name in systems())
    published = {yaml.safe_load(path.read_text(encoding="utf-8"))["gpu"]["name"] for path in contents}
    for family in families():
        assert set(family.gpus) <= published
        assert family.low_log < family.high_log
        assert family.configurations <= family.rows


def test_text_json_and_comparison_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(full_form(parallelism=SHARDED | {"data_parallel_size": 4}), tmp_path / "c.yml")
    expected = note(**SHARDED)
    assert main(["predict", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"].count(expected) == 1
    for command in (["predict", str(path)], ["compare", str(path), "--system", "Vista"]):
        assert main(command) == 0
        assert "with ZeRO-2/3 or FSDP" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("stages", [["2"], ["0", "2"], ["0"]])
def test_a_search_says_it_once_of_the_winners_that_it_is_about(
    stages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", "--model", "llama3-8b", "--system", "Perlmutter", "--gpus", "16", "--global-batch-size", "64"]
    narrowed = [word for stage in stages for word in ("--zero-stage", stage)]
    assert main([*command, *narrowed, "--top", "400", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    said = [text for text in document["notes"] if "with ZeRO-2/3 or FSDP" in text]
    numbers = [i for i, layout in enumerate(document["layouts"], start=1) if layout["layout"]["zero_stage"] >= 2]
    assert bool(numbers) == ("2" in stages)
    if not numbers:
        assert not said
    elif len(numbers) == len(document["layouts"]):
        assert [text.startswith("Published runs") for text in said] == [True]
    else:
        plural = "s" if len(numbers) > 1 else ""
        assert [text.startswith(f"Layout{plural} {', '.join(map(str, numbers))}: ") for text in said] == [True]


@pytest.mark.parametrize("framework", [None, Framework.MEGATRON_LM])
def test_runs_on_other_gpus_make_no_prediction_surer_than_its_operators(framework: Framework | None) -> None:
    run = replace(prepare(full_form(), Path.cwd()).run, framework=framework, gemm_recipe=GemmRecipe.FP8_DELAYED)
    own = Cost(1e6, 0.6e6, 1.7e6, Source.ANALYTIC)
    bounded, family = bounded_step(
        run, PublishedSystem(REGRESSORS_FOLDER / "V100", "fp16"), own, Cost(0.0, 0.0, 0.0, Source.ANALYTIC), 0.0
    )
    assert family is not None
    assert not family.gpus
    assert bounded.low_us <= own.low_us
    assert bounded.high_us >= own.high_us


def test_a_run_that_waits_for_the_host_more_than_those_published_is_no_surer_than_its_operators() -> None:
    run = run_of("H100", {"precision": "bf16", "framework": "megatron-lm"})
    own, closing = Cost(1e6, 0.5e6, 2e6, Source.ANALYTIC), Cost(0.0, 0.0, 0.0, Source.ANALYTIC)
    system = PublishedSystem(REGRESSORS_FOLDER / "H100", "fp16")
    family = family_of(run, system.gpu)
    assert family is not None
    within, _ = bounded_step(run, system, own, closing, family.most_host_share)
    beyond, _ = bounded_step(run, system, own, closing, family.most_host_share + 0.4)
    assert own.low_us < within.low_us < 1e6 < within.high_us < own.high_us
    assert beyond.low_us == pytest.approx(0.6 * within.low_us + 0.4 * own.low_us)
    assert beyond.high_us == pytest.approx(0.6 * within.high_us + 0.4 * own.high_us)


def test_a_note_says_that_a_run_waits_for_the_host_more_than_those_published() -> None:
    training = {"precision": "bf16", "framework": "megatron-lm"}
    said = note("H100", training, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=8)
    assert said is not None
    assert "waits for the host" not in said
    content = full_form(system="H100", model={"sequence_length": 128}, training=training)
    loaded = prepare(content, Path.cwd())
    said = published_runs_note(predict(loaded.run, loaded.system), loaded.system)
    assert said is not None
    assert "but for the time in which it waits for the host" in said
