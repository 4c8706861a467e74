"""Sections of a program of one's own that hold a Trainer's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.core.base.errors import ConfigError
from predictor.core.schema.merging import merged
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any

RUN = {
    "experiment": {"name": "a", "seed": 1},
    "model": {"name": "Qwen/Qwen3-8B", "torch_dtype": "bfloat16"},
    "data": {"max_rows": 10},
    "training": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "max_seq_length": 4096},
}


def found(tmp_path: Path, keys: dict[str, Any]) -> Read:
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(merged(RUN, keys)), encoding="utf-8")
    assert detect(path) == "Hugging Face Trainer arguments"
    return read_any(path, 8)


def test_sections(tmp_path: Path) -> None:
    read = found(tmp_path, {"training": {"bf16": True, "gradient_checkpointing": True}})
    model, training = read.content["model"], read.content["training"]
    assert (model["preset"], model["sequence_length"]) == ("qwen3-8b", 4096)
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (2, 8)
    assert (training["precision"], training["recompute"]) == ("bf16", "full")
    assert read.notes[0] == (
        "sft.yaml is of a program of its own, read by the last parts of its names as a Trainer's; not read: data, "
        "experiment"
    )


@pytest.mark.parametrize(
    ("keys", "lora"),
    [
        ({"peft": {"method": "lora", "r": 16, "target_modules": ["q_proj"]}}, {"rank": 16, "targets": ["q"]}),
        ({"model": {"lora_config": {"r": 4, "target_modules": ["v_proj"]}}}, {"rank": 4, "targets": ["v"]}),
        (
            {"lora": {"rank": 8, "target_modules": ["q_proj"]}, "quantization": {"load_in_4bit": True}},
            {"rank": 8, "targets": ["q"], "quantized_base": True},
        ),
        ({"lora": {"enabled": False, "r": 8, "target_modules": ["q_proj"]}}, None),
    ],
)
def test_adapters(keys: dict[str, Any], lora: dict[str, Any] | None, tmp_path: Path) -> None:
    assert found(tmp_path, keys).content["training"].get("lora") == lora


def test_a_section_in_a_section(tmp_path: Path) -> None:
    run = {"training": None, "run": {"seed": 1, "sft": {"per_device_train_batch_size": 4, "max_length": 512}}}
    content = found(tmp_path, run).content
    assert (content["training"]["micro_batch_size"], content["model"]["sequence_length"]) == (4, 512)


def test_several_trainings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has several trainings: dpo, training; leave one"):
        found(tmp_path, {"dpo": {"per_device_train_batch_size": 1}})


def test_a_key_of_cost_that_nothing_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sub_batch_size is 2; of TRL it is not known here"):
        found(tmp_path, {"training": {"sub_batch_size": 2}})


def test_sections_that_our_own_trainers_have_too(tmp_path: Path) -> None:
    keys = {"experiment": None, "data": {"max_seq_length": 8192}, "training": {"max_seq_length": None, "bf16": True}}
    read = found(tmp_path, keys)
    assert read.content["model"]["sequence_length"] == 8192
    assert read.content["training"]["precision"] == "bf16"
    assert found(tmp_path, {"experiment_name": "a"}).format == "Hugging Face Trainer arguments"


def test_a_switch_outside_of_the_section_counts(tmp_path: Path) -> None:
    keys = {"training": {"is_peft": False}, "peft_config": {"r": 32}}
    assert "lora" not in found(tmp_path, keys).content["training"]


def test_objective_of_the_section(tmp_path: Path) -> None:
    run = {"training": None, "dpo": {"per_device_train_batch_size": 4, "max_length": 512, "bf16": True}}
    training = found(tmp_path, run).content["training"]
    assert (training["micro_batch_size"], training["reference_model"]) == (8, "separate")  # two answers of a prompt
    with pytest.raises(ConfigError, match="stands under grpo, which generates text"):
        found(tmp_path, {"training": None, "grpo": {"per_device_train_batch_size": 4}})


def test_a_section_that_is_not_read_and_may_cost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"distributed.strategy is 'fsdp', in a section that is not read"):
        found(tmp_path, {"distributed": {"strategy": "fsdp"}})
    assert found(tmp_path, {"evaluation": {"batch_size": 8}}).content["training"]["micro_batch_size"] == 2


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"enabled": True, "bnb_4bit_quant_type": "nf4"}, True),
        ({"bits": 4, "compute_dtype": "bfloat16"}, True),
        ({"enabled": False, "bnb_4bit_quant_type": "nf4"}, None),
    ],
)
def test_a_base_in_four_bits(quantization: dict[str, Any], expected: bool | None, tmp_path: Path) -> None:
    training = found(tmp_path, {"lora": {"r": 8}, "quantization": quantization}).content["training"]
    assert training["lora"].get("quantized_base") is expected


def test_bits_that_nothing_says_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantised in bits that are not said"):
        found(tmp_path, {"quantization": {"enabled": True}})


def test_a_batch_and_its_accumulation_beside_a_known_model(tmp_path: Path) -> None:
    path = tmp_path / "lora.yaml"
    keys = {
        "model_name": "meta-llama/Meta-Llama-3-8B",
        "batch_size": 4,
        "gradient_accumulation": 8,
        "max_seq_len": 2048,
    }
    path.write_text(yaml.safe_dump(keys | {"experiment_name": "a", "method": "qlora", "quantization": {"bits": 4}}))
    read = read_any(path, 8)
    training = read.content["training"]
    assert (training["micro_batch_size"], training["num_micro_batches"]) == (4, 8)
    assert training["lora"]["quantized_base"] is True
    assert "says no precision" in read.unsaid["training.precision"]
    path.write_text(yaml.safe_dump(keys | {"model_name": "own/model"}))
    with pytest.raises(ConfigError, match="its format is not known"):
        read_any(path, 8)


def test_a_preference_is_told_by_method_section_or_the_file_s_name(tmp_path: Path) -> None:
    flat = {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 2, "max_length": 512, "beta": 0.1}
    for name, keys in {"dpo.yaml": {}, "run.yaml": {"method": "dpo"}}.items():
        (tmp_path / name).write_text(yaml.safe_dump(flat | keys))
        assert read_any(tmp_path / name, 8).content["training"]["micro_batch_size"] == 4
    training = found(tmp_path, {"align": {"method": "dpo"}}).content["training"]
    assert training["reference_model"] == "separate"


def test_sections_beside_a_batch_that_stands_outside(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    content = {"model_name": "Qwen/Qwen3-8B", "batch_size": 1, "grad_accum": 8, "quant": {"load_in_4bit": True}}
    sections = {"train": {"gradient_checkpointing": True, "max_seq_len": 1024}, "lora": {"r": 8}, "bf16": True}
    path.write_text(yaml.safe_dump(content | sections))
    read = read_any(path, 8)
    assert read.content["training"]["recompute"] == "full"
    assert read.content["training"]["lora"]["quantized_base"] is True
    assert read.content["model"]["sequence_length"] == 1024


def test_settings_of_a_quantised_base_among_adapters(tmp_path: Path) -> None:
    qlora = {"r": 16, "bits": 4, "quant_type": "nf4", "double_quant": True}
    training = found(tmp_path, {"qlora": qlora, "training": {"mixed_precision": "fp16"}}).content["training"]
    assert training["lora"]["quantized_base"] == "nf4_double"
    assert training["precision"] == "fp16"
