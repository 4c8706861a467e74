"""The full form of a configuration: what it defaults to, and what it turns into."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from predictor.config import to_run
from predictor.errors import ConfigError, MissingKeyError, PublishedError
from predictor.loading import load, published
from predictor.read_yaml import read_mapping
from predictor.sections import (
    BudgetSection,
    ExpertsSection,
    ModelSection,
    ParallelismSection,
    RunConfig,
    TrainingSection,
    validate,
)
from predictor.sizes import LARGEST, must_divide, whole
from predictor.step_time import predict
from predictor.workloads.run import Recompute
from tests.unit.examples import full_form, short_form, write

ROOT = Path(__file__).resolve().parents[2]


SECTIONS = (ModelSection, ExpertsSection, ParallelismSection, TrainingSection, BudgetSection)


def test_every_field_says_what_it_is() -> None:
    for section in (RunConfig, *SECTIONS):
        for name, field in section.model_fields.items():
            is_section = name in ("model", "parallelism", "training", "budget")
            assert field.description or is_section, f"{section.__name__}.{name} has no description"


def test_every_field_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for section in SECTIONS:
        for field in section.model_fields:
            assert f"`{field}`" in text, f"docs/configuration.md does not mention {field}"


def test_defaults(tmp_path: Path) -> None:
    run, system = load(write(full_form(), tmp_path / "config.yml"))
    assert run.layout.num_gpus == 1
    assert run.layout.gpus_per_node == system.system.gpus_per_node
    assert run.model.ffn_hidden_size == 4 * run.model.hidden_size
    assert run.layers_per_stage == (8,)
    assert run.recompute is Recompute.NONE
    assert run.precision == "fp16"


def test_global_batch_size_gives_the_micro_batches() -> None:
    training = {"micro_batch_size": 2, "num_micro_batches": None, "global_batch_size": 32}
    config = validate(full_form(training=training, parallelism={"data_parallel_size": 4}))
    assert to_run(config, 4).num_micro_batches == 4
    with pytest.raises(ConfigError, match="multiple of"):
        to_run(validate(full_form(training=training, parallelism={"data_parallel_size": 3})), 4)


def test_system_by_path_and_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(ROOT / "regressors" / "Vista")
    _, system = load(write(full_form(system="mine"), tmp_path / "config.yml"))
    assert system.name == "Vista"
    _, system = load(write(full_form(system=str(ROOT / "regressors" / "Vista")), tmp_path / "config.yml"))
    assert system.name == "Vista"


def test_published_name_is_not_shadowed_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "Perlmutter").mkdir()
    _, system = load(write(full_form(), tmp_path / "config.yml"))
    assert system.name == "Perlmutter"


def test_folder_that_is_no_system(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"manifest\.json.*Published: .*Perlmutter"):
        load(write(full_form(system="empty"), tmp_path / "config.yml"))


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_blank_system_is_not_the_folder_of_the_file(name: str, tmp_path: Path) -> None:
    content = full_form()
    content["system"] = name
    for path in (ROOT / "regressors" / "Vista").iterdir():
        (tmp_path / path.name).symlink_to(path)
    with pytest.raises(ConfigError, match=r"system is .*Perlmutter \(.*Vista \("):
        load(write(content, tmp_path / "config.yml"))


@pytest.mark.parametrize("names", [[], ["lm_head"], ["cross_entropy", "embedding"], ["optimizer_step"], ["gelu", "x"]])
def test_layer_of_no_operators_of_a_layer(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.layer_operators .*Known: attention_mask"):
        load(write(full_form(model={"layer_operators": names}), tmp_path / "config.yml"))


def test_published_systems_are_listed_with_their_gpus() -> None:
    assert "Perlmutter (NVIDIAA100-SXM4-80GB), Selene (NVIDIAA100-SXM4-80GB), Vista (NVIDIAGH200120GB)" in published()


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "numbers.yml"
    path.write_text("a: 1e-4\nb: 1.26e9\nc: 5E3\nd: 10\n", encoding="utf-8")
    assert read_mapping(path) == {"a": 1e-4, "b": 1.26e9, "c": 5e3, "d": 10}


def test_bucket_in_scientific_notation_is_a_number_of_elements(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(short_form(comm_bucket=None)) + "comm_bucket: 1.26e9\n", encoding="utf-8")
    run, _ = load(path)
    assert run.gradient_bucket_elements == 1_260_000_000


def test_bf16_is_answered_from_fp16_and_says_so(tmp_path: Path) -> None:
    half = predict(*load(write(full_form(), tmp_path / "fp16.yml")))
    run, system = load(write(full_form(training={"precision": "bf16"}), tmp_path / "bf16.yml"))
    brain = predict(run, system)
    assert (run.precision, system.precision) == ("bf16", "fp16")
    assert brain.step.us == half.step.us
    assert brain.step.source.label in ("extrapolated", "analytic")


def test_documented_exceptions(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.yml")
    with pytest.raises(KeyError, match="encoders"):
        load(write(short_form(encoders=None), tmp_path / "config.yml"))
    with pytest.raises(ValueError, match="mp"):
        load(write(short_form(mp=5), tmp_path / "config.yml"))
    (tmp_path / "config.yml").write_text("a: [", encoding="utf-8")
    with pytest.raises(yaml.YAMLError):
        load(tmp_path / "config.yml")
    assert issubclass(MissingKeyError, KeyError)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(PublishedError, ValueError)


@pytest.mark.parametrize("name", LARGEST)
def test_largest_sizes_are_allowed_and_no_more(name: str) -> None:
    assert whole(name, LARGEST[name]) == LARGEST[name]
    with pytest.raises(ConfigError, match="slip"):
        whole(name, LARGEST[name] + 1)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_whole_refuses(value: object) -> None:
    with pytest.raises(ConfigError):
        whole("hidden_size", value)


def test_divisors_offered_divide() -> None:
    with pytest.raises(ConfigError, match=r"Try 1 or 7\.$"):
        must_divide("tensor_parallel_size", 2, "num_attention_heads", 7)
