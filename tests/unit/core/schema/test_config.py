"""The full form of a configuration: what it defaults to, and what it turns into."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from predictor.core.base.errors import ConfigError, MissingKeyError, PublishedError
from predictor.core.base.read_yaml import read_mapping
from predictor.core.base.sizes import LARGEST, must_divide, whole
from predictor.core.blocks.latent_attention import Indexer
from predictor.core.blocks.mamba2 import Mamba2
from predictor.core.plan.loading import load, prepare, read_config
from predictor.core.plan.to_run import to_run
from predictor.core.schema.finding import published_with_gpus
from predictor.core.schema.model_section import ModelSection
from predictor.core.schema.parallelism import ParallelismSection
from predictor.core.schema.section import section_in, section_keys
from predictor.core.schema.sections import BudgetSection, RunConfig, TrainingSection, validate
from predictor.core.step.prediction import predict
from predictor.core.transforms.lora import Lora
from predictor.core.workload.run_choices import Recompute
from tests.unit.examples import full_form, short_form, write

ROOT = Path(__file__).resolve().parents[4]


def sections_in(section: type) -> Iterator[type]:
    """A section and all that its keys hold."""
    yield section
    for key in section_keys(section):
        inside = section_in(section, key)
        if inside is not None:
            yield from sections_in(inside)


SECTIONS = tuple(dict.fromkeys(sections_in(RunConfig)))


def test_every_section_is_found() -> None:
    assert {ModelSection, ParallelismSection, TrainingSection, BudgetSection, Lora, Indexer, Mamba2} <= set(SECTIONS)
    assert len(SECTIONS) > 15


def described(section: type) -> dict[str, str | None]:
    """The descriptions of a section's keys."""
    if issubclass(section, BaseModel):
        return {name: field.description for name, field in section.model_fields.items()}
    properties = TypeAdapter(section).json_schema(mode="validation")["properties"]
    return {name: properties[name].get("description") for name in section_keys(section)}


def test_every_key_says_what_it_is() -> None:
    for section in SECTIONS:
        for name, description in described(section).items():
            is_section = name in ("model", "parallelism", "training", "budget")
            assert description or is_section, f"{section.__name__}.{name} has no description"


def test_every_key_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for section in SECTIONS[1:]:
        for key in section_keys(section):
            assert f"`{key}`" in text, f"docs/configuration.md does not mention {key}"


def test_defaults(tmp_path: Path) -> None:
    run, system = load(write(full_form(), tmp_path / "config.yml"))
    assert run.layout.num_gpus == 1
    assert run.layout.gpus_per_node == system.hardware.gpus_per_node
    assert run.model.ffn_hidden_size == 4 * run.model.hidden_size
    assert run.layers_per_stage == (8,)
    assert run.recompute is Recompute.NONE
    assert run.precision == "bf16"


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
    with pytest.raises(ConfigError, match=r"system is .*: .*Perlmutter, .*Vista"):
        load(write(content, tmp_path / "config.yml"))


@pytest.mark.parametrize(
    "names",
    [[], ["lm_head"], ["cross_entropy", "embedding"], ["fused_cross_entropy"], ["optimizer_step"], ["gelu", "x"]],
)
def test_layer_of_no_operators_of_a_layer(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.layer_operators .*Known: attention_mask"):
        load(write(full_form(model={"layer_operators": names}), tmp_path / "config.yml"))


def test_published_systems_are_listed_with_their_gpus() -> None:
    listed = published_with_gpus().split(", ")
    for system in ("Perlmutter (NVIDIAA100-SXM4-80GB)", "Selene (NVIDIAA100-SXM4-80GB)", "Vista (NVIDIAGH200120GB)"):
        assert system in listed


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


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "one key-value head too many": ({"model": {"num_key_value_heads": 5}}, "num_key_value_heads is 5"),
    "window without causal": ({"model": {"sliding_window": 128, "causal": False}}, "causal: true"),
    "windowed layers without a window": ({"model": {"sliding_window_layers": 2}}, "sliding_window"),
    "more windowed layers than layers": (
        {"model": {"sliding_window": 128, "sliding_window_layers": 9}},
        "the model has 8 layers",
    ),
    "hardly rotated": ({"model": {"rotary_fraction": 0.001}}, "at least 2 rotate"),
    "too few positions": ({"model": {"rotary_fraction": 0.0, "num_position_embeddings": 4}}, "needs as many"),
    "listed operators and a window": (
        {"model": {"sliding_window": 128, "layer_operators": ["flash_attention"]}},
        "sliding_window",
    ),
    "listed gelu and a gate": ({"model": {"activation": "swiglu", "layer_operators": ["gelu"]}}, "must be swiglu"),
    "ring of an uneven sequence": ({"parallelism": {"context_parallel_size": 3}}, "6 must divide"),
    "ring with unfused attention": (
        {"model": {"attention": "unfused"}, "parallelism": {"context_parallel_size": 2}},
        "attention: flash",
    ),
    "experts no model has": ({"parallelism": {"expert_parallel_size": 2}}, "no experts"),
    "chunks without a pipeline": ({"parallelism": {"virtual_pipeline_parallel_size": 2}}, "at least 2 pipeline"),
    "interleaving a count that does not divide": (
        {
            "parallelism": {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2},
            "training": {"num_micro_batches": 5},
        },
        "multiple of pipeline_parallel_size",
    ),
    "chunks that do not divide the layers": (
        {"parallelism": {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 3}},
        "must divide the layers",
    ),
    "blocking where it cannot": (
        {"parallelism": {"pipeline_parallel_size": 2, "schedule": "zero_bubble_h1", "blocking_transfers": True}},
        "needs false",
    ),
    "scattering what is kept whole": (
        {"parallelism": {"zero_stage": 0, "gradient_reduction": "reduce_scatter"}},
        "so all_reduce",
    ),
    "summing what is shared out": (
        {"parallelism": {"zero_stage": 2, "gradient_reduction": "all_reduce"}},
        "so reduce_scatter",
    ),
    "an order that leaves one out": ({"parallelism": {"rank_order": ["tp", "dp", "pp"]}}, "name each of"),
    "an order that is no list": ({"parallelism": {"rank_order": "tp-cp-dp-pp"}}, "list of names"),
    "ZeRO-4": ({"parallelism": {"zero_stage": 4}}, "zero_stage"),
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_hidden_size": 512}
CONTRADICTORY_EXPERTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "more choices than experts": ({"experts_per_token": 5}, {}, "there are 4 experts"),
    "no layer with experts": ({"num_dense_layers": 8}, {}, "one must have experts"),
    "a capacity and an imbalance": ({"capacity_factor": 1.2, "load_imbalance": 1.5}, {}, "leave one out"),
    "busier than possible": (
        {"load_imbalance": 5.0},
        {"expert_parallel_size": 4, "data_parallel_size": 4},
        "no rank can have more than 4",
    ),
    "tensor parallel without sequence parallel": ({}, {"tensor_parallel_size": 2}, "sequence_parallel: true"),
    "experts that do not divide": ({}, {"expert_parallel_size": 3, "data_parallel_size": 3}, "must divide num_experts"),
    "ranks that do not divide": ({}, {"expert_parallel_size": 2, "data_parallel_size": 3}, "expert_parallel_size is 2"),
    "ranks that do not nest": (
        {"num_experts": 12},
        {"expert_parallel_size": 6, "context_parallel_size": 4, "data_parallel_size": 3},
        "or be a multiple of it",
    ),
    "a gate without shared experts": ({"shared_expert_gate": True}, {}, "needs shared_expert_ffn_hidden_size"),
    "an unknown key": ({"experts": 8}, {}, "num_experts"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_one_line(name: str, tmp_path: Path) -> None:
    sections, message = CONTRADICTIONS[name]
    with pytest.raises(ConfigError) as caught:
        load(write(full_form(**sections), tmp_path / "config.yml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CONTRADICTORY_EXPERTS)
def test_contradictory_experts_are_one_line(name: str, tmp_path: Path) -> None:
    experts, parallelism, message = CONTRADICTORY_EXPERTS[name]
    content = full_form(model={"moe": EXPERTS | experts}, parallelism=parallelism)
    with pytest.raises(ConfigError) as caught:
        load(write(content, tmp_path / "config.yml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_other_tools_are_named_by_from(tmp_path: Path) -> None:
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"from: config\.json"):
        load(path)


def test_files_that_disagree_are_told(tmp_path: Path) -> None:
    sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "fp16": {"enabled": True}}
    for name, stage in (("one.json", 1), ("two.json", 2)):
        content = {**sizes, "zero_optimization": {"stage": stage}}
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    sections = full_form()
    del sections["training"]
    sections["parallelism"] = {**sections.get("parallelism", {}), "data_parallel_size": 4}
    path = write({**sections, "from": ["one.json", "two.json"]}, tmp_path / "config.yml")
    loaded = prepare(*read_config(path))
    assert loaded.run.zero_stage == 2
    assert any("two.json says parallelism.zero_stage: 2" in note for note in loaded.notes)


@pytest.mark.parametrize("name", [3, ["llama3-8b"], {"a": 1}])
def test_a_preset_is_a_name(name: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.preset is"):
        load(write(full_form(model={"preset": name}), tmp_path / "config.yml"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"layer_types": ["mamba2"]}, "model.layer_types has mamba2; it needs model.mamba2, the sizes of those layers"),
        ({"layer_types": []}, "model.layer_types is a list: it is empty; list the layers of one period"),
        ({"layer_types": ["sliding_attention"]}, "it needs model.sliding_window"),
        ({"attention_chunk": 64}, "no layer of model.layer_types is chunked_attention"),
        ({"ffn_types": ["experts"]}, "model.ffn_types has experts exactly where model.moe gives their sizes"),
        ({"layer_types": ["none"], "ffn_types": ["none"]}, "layer 0 has neither a token mixer nor an FFN"),
        ({"encoder": {}}, "model.encoder needs causal: false"),
        ({"positions": "learned", "rotary_fraction": 0.5}, "they contradict each other"),
        ({"shared_input_norm": True}, "model.shared_input_norm needs parallel_residual: true"),
    ],
)
def test_contradictions_of_layers_are_told(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    content = full_form()
    content["model"] |= keys
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(write(content, tmp_path / "config.yml"))
