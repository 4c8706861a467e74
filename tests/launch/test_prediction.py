"""Before an experiment runs: step time, memory, duration, cost and time limit, or the reason why none is known."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model_training_framework.config import ConfigurationError, ExperimentConfig, ParameterGridSearch
from model_training_framework.prediction import (
    ExperimentPrediction,
    Margins,
    PredictionError,
    predict_experiment,
    time_limit,
    time_limit_s,
    try_predict,
)
from model_training_framework.prediction import question as question_module
from model_training_framework.utils import Error, Success
from predictor import predict
from predictor.core.base.bundled import REGRESSORS_FOLDER
from tests.launch.examples import small, transformer


def config_of(**sections: dict[str, Any]) -> ExperimentConfig:
    return ExperimentConfig.from_dict(transformer(**sections))


def predicted(**sections: dict[str, Any]) -> ExperimentPrediction:
    return predict_experiment(config_of(**sections))


def test_it_says_what_the_predictor_says() -> None:
    step = predict(transformer())
    found = predicted()
    assert (found.step_s, found.low_step_s, found.high_step_s) == pytest.approx(
        (step.step.us / 1e6, step.step.low_us / 1e6, step.step.high_us / 1e6)
    )
    assert found.tokens_per_second == pytest.approx(step.tokens_per_second)
    assert found.tokens_per_second == pytest.approx(1024 * found.samples_per_second)
    assert (found.memory_gib, found.gpu_memory_gib, found.fits) == (step.memory_gib, 80.0, True)
    assert (found.system, found.num_gpus, found.steps) == ("Perlmutter", 4, 1000)
    assert found.refusal is None
    bill = step.budget
    assert (found.hours, found.low_hours, found.high_hours, found.gpu_hours, found.cost) == pytest.approx(
        (bill.hours, bill.low_hours, bill.high_hours, bill.gpu_hours, bill.price)
    )


def test_text_is_one_line_and_the_dictionary_is_json() -> None:
    found = predicted()
    line = found.text()
    assert "\n" not in line
    for part in (
        ") per step, ",
        " tokens/s",
        " of 80.0 GiB, fits",
        "1,000 steps in",
        " GPU-hours",
        "cost ",
        "4 GPUs of",
    ):
        assert part in line
    content = json.loads(json.dumps(found.to_dict()))
    assert (content["fits"], content["steps"], content["experiment_name"]) == (True, 1000, "small")


def test_text_says_short_and_long_durations_in_units_that_read_well() -> None:
    assert re.search(r"\b1 steps in [\d.]+ m?s \(", predicted(training={"max_steps": 1}).text())
    assert re.search(r"10,000,000 steps in [\d.,]+ days \(", predicted(training={"max_steps": 10_000_000}).text())
    assert not re.search(r"\de[+-]\d", predicted(training={"max_steps": 1}).text())


def test_without_a_number_of_steps_there_is_no_duration() -> None:
    found = predicted(training={"max_steps": None})
    assert (found.steps, found.hours, found.gpu_hours, found.cost) == (None, None, None, None)
    assert "number of steps unknown" in found.text()
    assert predicted(training={"max_steps": None}, data={"num_samples": 1600}).steps == 200  # 2 epochs


def test_gpus_that_the_job_is_given_are_paid_for_even_if_unused() -> None:
    used, given = predicted(slurm={"ntasks_per_node": 2, "gres": "gpu:2"}), predicted(slurm={"ntasks_per_node": 2})
    assert given.hours == used.hours
    assert given.gpu_hours == pytest.approx(2 * (used.gpu_hours or 0))
    assert given.num_gpus == used.num_gpus == 2


def test_what_does_not_fit_is_predicted_and_refused_with_a_way_out() -> None:
    found = predicted(model={"hidden_size": 8192, "num_layers": 80, "num_heads": 64})
    assert found.fits is False
    assert "does not fit" in found.text()
    assert found.refusal is not None
    assert "80.0; lower training.batch_size, or raise zero_stage" in found.refusal


def test_what_may_not_fit_is_said_and_not_refused() -> None:
    found = replace(predicted(), memory_gib=82.0)
    assert found.fits is None
    assert "82.0 of 80.0 GiB, may not fit" in found.text()
    assert found.cells()["GiB per GPU"] == "82.0 of 80.0, may not fit"
    assert found.to_dict()["fit"] == "may not fit"
    assert found.refusal is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"num_heads": None}}, "model 'transformer' cannot be predicted without model.num_heads"),
        ({"prediction": {"system": None}}, "prediction.system is missing; name a published system: "),
        ({"prediction": {"system": "Perlmuter"}}, "Perlmuter is not a published system. Did you mean Perlmutter?"),
        (
            {"prediction": {"config": {"training": {"gemm_recipe": "fp8_delayed"}}}},
            "training.gemm_recipe is fp8_delayed; Perlmutter has no fp8 tensor cores; leave it out",
        ),
        ({"training": {"tensor_parallel_size": 3}}, "training.tensor_parallel_size is 3; times pipeline_parallel_size"),
        ({"slurm": {"ntasks_per_node": 8}}, "gpus_per_node is 8; Perlmutter has 4"),
        ({"prediction": {"config": {"modl": 1}}}, "modl is not a known key. Did you mean model?"),
        ({"prediction": {"config": "none.yaml"}}, "prediction.config is '"),
    ],
)
def test_what_cannot_be_predicted_has_a_reason_and_no_number(changes: dict[str, Any], reason: str) -> None:
    config = config_of(**changes)
    found = try_predict(config)
    assert isinstance(found, Error)
    assert found.error.startswith(reason)
    assert "\n" not in found.error
    with pytest.raises(PredictionError) as caught:
        predict_experiment(config)
    assert str(caught.value) == f"experiment small cannot be predicted: {found.error}"


def test_what_is_no_transformer_has_a_reason() -> None:
    found = try_predict(ExperimentConfig.from_dict(small(prediction={"system": "Perlmutter"})))
    assert isinstance(found, Error)
    assert found.error.startswith("model 'mlp' cannot be predicted without model.hidden_size")


def test_a_grid_asks_each_question_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def counted(content: Any) -> Any:
        asked.append(content)
        return predict(content)

    monkeypatch.setattr(question_module, "predict", counted)
    question_module.answer.cache_clear()
    search = ParameterGridSearch(transformer())
    grid = search.create_grid("rates")
    grid.add_parameter("training.learning_rate", [1e-3, 1e-4, 1e-5])
    grid.add_parameter("training.max_steps", [10, 20])
    grid.add_parameter("training.batch_size", [1, 2])
    found = [predict_experiment(config) for config in search.generate_experiments()]
    assert len(asked) == 2
    assert len({one.experiment_name for one in found}) == 12
    assert {one.steps for one in found} == {10, 20}
    assert len({one.step_s for one in found}) == 2


def test_a_file_of_the_prediction_is_relative_to_the_project_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("training: {recompute: none}\n")
    config = config_of(prediction={"config": "own.yaml"})
    first = predict_experiment(config, tmp_path)
    path.write_text("training: {recompute: full}\n")
    os.utime(path, ns=(1, 1))
    assert predict_experiment(config, tmp_path).step_s > first.step_s
    assert isinstance(try_predict(config, tmp_path / "elsewhere"), Error)
    assert isinstance(try_predict(config, str(tmp_path)), Success)


def test_a_system_of_the_project_s_own_is_a_folder_in_it(tmp_path: Path) -> None:
    shutil.copytree(REGRESSORS_FOLDER / "H100", tmp_path / "systems" / "mine")
    own, published = ({"prediction": {"system": system}} for system in ("systems/mine", "H100"))
    assert predict_experiment(config_of(**own), tmp_path).step_s == predicted(**published).step_s
    assert isinstance(try_predict(config_of(**own), tmp_path / "systems"), Error)


def test_a_time_limit_is_the_upper_bound_and_margins_with_their_reasons() -> None:
    config = config_of(training={"epochs": 4}, checkpoint={"save_every_n_steps": 100, "save_every_n_epochs": 2})
    found = predict_experiment(config)
    limit = time_limit(config, found, Margins(start_up_s=60.0, share=0.5, checkpoint_gb_per_s=2.0))
    assert found.high_hours is not None
    steps_s = found.high_hours * 3600
    saves = 10 + 2 + 1
    expected = [steps_s, steps_s / 2, 60.0, saves * found.parameters * 12 / 2e9]
    assert [part.seconds for part in limit.parts] == pytest.approx(expected)
    assert sum(expected) <= limit.seconds < sum(expected) + 60
    assert limit.seconds % 60 == 0
    assert "for 1,000 steps at the upper end of the 90 % interval" in limit.text()
    assert "for 13 checkpoints of" in limit.text()
    assert time_limit_s(config, found) == time_limit(config, found).seconds


def test_a_time_limit_needs_a_number_of_steps() -> None:
    config = config_of(training={"max_steps": None})
    with pytest.raises(
        ConfigurationError, match=r"no known number of steps for time_limit: auto; set training\.max_steps"
    ):
        time_limit_s(config, predict_experiment(config))
    with pytest.raises(ConfigurationError, match="expected at least 0, and a rate above 0"):
        Margins(checkpoint_gb_per_s=0.0)
