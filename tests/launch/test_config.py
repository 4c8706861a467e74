"""An experiment's configuration: the specification's keys load, and a slip is one line that names the way out."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from model_training_framework.config import (
    ConfigurationError,
    DataConfig,
    ExperimentConfig,
    LoggingConfig,
    ModelConfig,
    OptimizerConfig,
    SLURMConfig,
    TrainingConfig,
    ValidationError,
)
from model_training_framework.config.fields import duration_s
from model_training_framework.config.nested import with_value
from model_training_framework.config.schema import dotted_keys
from tests.launch.examples import COMPLETE, small


def complete() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(COMPLETE)
    return content


def problem(content: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig.from_dict(content)
    line = str(caught.value)
    assert "\n" not in line
    return line


def slip(key: str, value: Any) -> str:
    return problem(with_value(complete(), key, value))


def test_the_complete_configuration_of_the_specification_loads() -> None:
    config = ExperimentConfig.from_dict(complete())
    assert config.model == ModelConfig("transformer", 512, 6, 8, 0.1)
    assert (config.optimizer.eps, config.optimizer.betas) == (1e-8, (0.9, 0.999))
    assert config.scheduler is not None
    assert config.scheduler.min_lr == 1e-6
    assert config.slurm is not None
    assert (config.slurm.time_limit, config.slurm.gres, config.slurm.additional_args) == ("24:00:00", "gpu:1", [])
    assert config.logging.wandb_entity == "my_team"
    assert config.checkpoint.save_every_n_epochs == 5
    assert config.performance.prefetch_factor == 2
    assert (config.seed, config.tags, config.version) == (42, ["experiment", "baseline"], "1.0")


def test_every_key_of_the_specification_comes_back_as_it_was() -> None:
    content = complete()
    back = ExperimentConfig.from_dict(content).to_dict()
    content["optimizer"]["eps"], content["scheduler"]["min_lr"] = 1e-8, 1e-6  # plain PyYAML reads text
    for section, keys in content.items():
        if isinstance(keys, dict):
            assert {key: back[section][key] for key in keys} == keys
        else:
            assert back[section] == keys


def test_a_configuration_survives_dictionaries_yaml_json_and_copies() -> None:
    config = ExperimentConfig.from_dict(complete())
    content = config.to_dict()
    assert ExperimentConfig.from_dict(content) == config
    assert ExperimentConfig.from_dict(json.loads(json.dumps(content))) == config
    assert ExperimentConfig.from_dict(yaml.safe_load(yaml.safe_dump(content))) == config
    assert copy.deepcopy(config) == config


def test_the_optional_sections_have_the_defaults_of_the_specification() -> None:
    config = ExperimentConfig.from_dict(small())
    assert (config.scheduler, config.slurm, config.description, config.created_by, config.seed) == (None,) * 5
    assert (config.tags, config.custom_params, config.version) == ([], {}, "1.0")
    assert (config.deterministic, config.benchmark) == (True, False)
    assert config.logging == LoggingConfig()
    assert config.command == "python train.py --config {config}"


def test_a_section_can_be_built_in_python_and_is_immutable() -> None:
    training = TrainingConfig(batch_size=8, learning_rate=0.1, epochs=1)
    config = ExperimentConfig("built", ModelConfig("mlp"), training, DataConfig("digits"), OptimizerConfig("sgd"))
    assert replace(config, seed=3).seed == 3
    with pytest.raises(FrozenInstanceError):
        config.training.batch_size = 9  # type: ignore[misc]
    with pytest.raises(ValidationError, match=r"^training\.batch_size is 0: expected at least 1$"):
        replace(training, batch_size=0)


def test_nothing_is_shared_with_what_a_configuration_was_made_of() -> None:
    content = small(custom_params={"inner": {"list": [1]}}, data={"preprocessing": {"crop": [2]}})
    config = ExperimentConfig.from_dict(content)
    content["custom_params"]["inner"]["list"].append(2)
    content["data"]["preprocessing"]["crop"].append(3)
    config.to_dict()["custom_params"]["inner"]["list"].append(4)
    assert config.custom_params == {"inner": {"list": [1]}}
    assert config.data.preprocessing == {"crop": [2]}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("model.hiden_size", "model.hidden_size"),
        ("modle", "model"),
        ("training.lr", "training.learning_rate"),
        ("training.weight_decay", "optimizer.weight_decay"),
        ("optimizer.learning_rate", "training.learning_rate"),
        ("model.type", "model.name"),
        ("slurm.time", "slurm.time_limit"),
        ("training.max_epochs", "training.epochs"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, meant: str) -> None:
    line = slip(key, 1)
    assert line.startswith(f"{key} is not a known key. Did you mean {meant}? Known here: ")
    assert "custom_params" in line


def test_a_misspelt_required_key_is_named_before_the_one_that_it_should_have_been() -> None:
    content = complete()
    content["training"]["learning_rat"] = content["training"].pop("learning_rate")
    assert problem(content).startswith("training.learning_rat is not a known key. Did you mean training.learning_rate?")


@pytest.mark.parametrize("key", ["experiment_name", "model", "training", "data", "optimizer"])
def test_a_missing_section_is_named(key: str) -> None:
    content = complete()
    del content[key]
    assert problem(content) == f"{key} is missing; it is required"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("training.batch_size", "x", "training.batch_size is 'x': expected a whole number"),
        ("training.batch_size", True, "training.batch_size is true: expected a whole number"),
        ("training.batch_size", 1.5, "training.batch_size is 1.5: expected a whole number"),
        ("training.learning_rate", 0, "training.learning_rate is 0: expected more than 0"),
        ("training.learning_rate", float("nan"), "training.learning_rate is nan: expected a finite number"),
        ("training.max_grad_norm", float("inf"), "training.max_grad_norm is inf: expected a finite number"),
        ("training.zero_stage", 4, "training.zero_stage is 4: expected at most 3"),
        ("training.precision", "fp8", "training.precision is 'fp8': expected fp32, bf16 or fp16"),
        ("model", 3, "model is 3; it needs keys: name, hidden_size,"),
        ("model.num_heads", 7, "model.num_heads is 7: it must divide hidden_size, 512"),
        ("model.dropout", 1, "model.dropout is 1: expected less than 1"),
        ("optimizer.betas", [1, 2, 3], "optimizer.betas is [1, 2, 3]: expected 2 values"),
        ("optimizer.betas", [0.9, 1.5], "optimizer.betas [1] is 1.5: expected less than 1"),
        ("scheduler", "cosine", "scheduler is 'cosine'; it needs keys: name, warmup_steps, min_lr"),
        ("logging.log_level", "info", "logging.log_level is 'info': expected DEBUG, INFO, WARNING, ERROR or CRITICAL"),
        ("slurm.time_limit", 86400, 'slurm.time_limit is 86400: put it in quotes: "24:00:00" if that was meant'),
        ("slurm.time_limit", "1 day", "slurm.time_limit is '1 day': expected \"auto\" or a duration"),
        ("slurm.time_limit", "0:00", "slurm.time_limit is '0:00': expected \"auto\" or a duration"),
        ("slurm.mem", "32 gigabytes", "slurm.mem is '32 gigabytes': expected memory as sbatch takes it"),
        ("slurm.partition", "a\nb", "slurm.partition is 'a\\nb': expected one line of text"),
        ("slurm.environment", {"A B": "x"}, "slurm.environment.A B is no name of an environment variable"),
        ("version", 1.0, "version is 1.0: expected text; put it in quotes"),
        ("tags", "x", "tags is 'x': expected a list"),
        ("seed", -1, "seed is -1: expected at least 0"),
        ("deterministic", "yes", "deterministic is 'yes': expected true or false"),
        ("experiment_name", "a b/c", "experiment_name is 'a b/c': a folder and a job are called so"),
        ("experiment_name", "..", "experiment_name is '..': a folder and a job are called so"),
        ("experiment_name", "x" * 200, "experiment_name is 'xxx"),
        ("custom_params", {"a": [1, {1, 2}]}, "custom_params.a[1] is {1, 2}: expected text, a number"),
        ("prediction", {"config": 3}, "prediction.config is 3: expected the path of a file, or keys and values"),
        ("prediction", {"config": {"a": {1}}}, "prediction.config.a is {1}: expected text, a number"),
        ("preemption.max_preemptions", -1, "preemption.max_preemptions is -1: expected at least 0"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_dotted_key(key: str, value: Any, line: str) -> None:
    found = slip(key, value)
    assert found.startswith(line)
    assert "more problem" not in found


def test_training_must_end() -> None:
    content = small()
    del content["training"]["epochs"]
    assert problem(content) == "training.epochs is missing; give epochs or max_steps"
    content["training"]["max_steps"] = 1e4
    assert ExperimentConfig.from_dict(content).training.max_steps == 10_000


def test_all_problems_are_kept_and_counted() -> None:
    content = with_value(with_value(complete(), "seed", -1), "training.batch_size", 0)
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig.from_dict(content)
    assert len(caught.value.problems) == 2
    assert str(caught.value).endswith("(and 1 more problem)")
    assert copy.copy(caught.value).problems == caught.value.problems


def test_errors_are_value_errors() -> None:
    assert issubclass(ValidationError, ConfigurationError)
    assert issubclass(ConfigurationError, ValueError)
    assert problem(3).startswith("the configuration is 3; it needs keys: experiment_name, model")


def test_numbers_of_environment_variables_and_memory_become_text() -> None:
    slurm = SLURMConfig.from_dict({"environment": {"OMP_NUM_THREADS": 4}, "mem": 32000})
    assert (slurm.environment, slurm.mem) == ({"OMP_NUM_THREADS": "4"}, "32000")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("24:00:00", 86400),
        ("1-12", 129600),
        ("2-12:00:00", 216000),
        ("1-00:00:01", 86401),
        ("0-0:30", 1800),
    ],
)
def test_durations_are_read_as_sbatch_reads_them(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds
    assert SLURMConfig(time_limit=text).time_limit == text


@pytest.mark.parametrize("text", ["auto", "UNLIMITED", "infinite"])
def test_a_time_limit_may_be_a_word(text: str) -> None:
    assert SLURMConfig(time_limit=text).time_limit == text


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted({*dotted_keys(), *complete(), "", "model.x y", "zz"})), ANYTHING)
def test_whatever_a_file_says_is_a_configuration_or_one_line(key: str, value: Any) -> None:
    content = with_value(complete(), key, value) if key else value
    with suppress(ValidationError):
        config = ExperimentConfig.from_dict(content)
        assert ExperimentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config or "nan" in repr(config)
        return
    with pytest.raises(ValidationError) as caught:
        ExperimentConfig.from_dict(content)
    assert caught.value.problems
    assert all(line and line.isprintable() for line in caught.value.problems)
