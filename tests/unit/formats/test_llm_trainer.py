"""A configuration of llm_trainer becomes one of the predictor: its words, its defaults, and what it cannot say."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_trainer.config import DataConfig, ModelConfig, TrainingConfig
from llm_trainer.config.model_config import ACTIVATIONS, NORMS, POSITION_ENCODINGS
from llm_trainer.config.training_config import AMP_DTYPES, PIPELINE_SCHEDULES
from predictor import predict
from predictor.core.base.errors import ConfigError, MissingKeyError
from predictor.core.plan.loading import prepare
from predictor.core.plan.to_run import to_run
from predictor.core.schema.input_kind import LLM_TRAINER_FORMAT
from predictor.core.schema.sections import validate
from predictor.formats import FORMATS, detect, llm_trainer, read_any
from predictor.formats.known_keys import known_keys

HERE = Path()
CONFIGS = {"model": ModelConfig, "training": TrainingConfig, "data": DataConfig}
USED = {"model": llm_trainer.MODEL, "training": llm_trainer.TRAINING, "data": llm_trainer.DATA}


def example(**changes: dict[str, Any]) -> dict[str, Any]:
    """A small LLaMA on four GPUs, with keys of its sections changed."""
    content: dict[str, dict[str, Any]] = {
        "model": {
            "vocab_size": 32000,
            "d_model": 1024,
            "n_heads": 16,
            "n_kv_heads": 4,
            "n_layers": 8,
            "d_ff": 2816,
            "max_seq_len": 2048,
            "norm": "rms_norm",
            "position_encoding": "rope",
            "activation": "swiglu",
            "use_bias": False,
            "tie_word_embeddings": False,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "training": {"batch_size": 2, "learning_rate": 1e-4, "amp_dtype": "bfloat16", "gradient_accumulation_steps": 8},
        "data": {"dataset_name": "text", "max_length": 512},
        "prediction": {"system": "Perlmutter", "world_size": 4},
    }
    for name, keys in changes.items():
        content[name] = {**content.get(name, {}), **keys}
    return content


def translated(**changes: dict[str, Any]) -> dict[str, Any]:
    return llm_trainer.translate(example(**changes), "x.yaml", HERE).content


def notes(**changes: dict[str, Any]) -> str:
    return "\n".join(llm_trainer.translate(example(**changes), "x.yaml", HERE).notes)


def test_the_reader_knows_every_field_and_no_other() -> None:
    keys = known_keys(llm_trainer.KEYS)
    for section, config in CONFIGS.items():
        known = {name.partition(".")[2] for name in (*keys.irrelevant, *keys.noted) if name.startswith(f"{section}.")}
        assert known | USED[section].keys() == {field.name for field in fields(config)}
        assert not known & USED[section].keys()


@pytest.mark.parametrize("section", CONFIGS)
def test_defaults_are_those_of_the_trainer(section: str) -> None:
    defaults = CONFIGS[section]()
    assert {key: getattr(defaults, key) for key in USED[section]} == USED[section]


def test_every_word_of_the_trainer_can_be_read() -> None:
    assert set(llm_trainer.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(llm_trainer.PRECISIONS) == set(AMP_DTYPES)
    assert set(llm_trainer.SCHEDULES) == set(PIPELINE_SCHEDULES)
    for key, words in (("activation", ACTIVATIONS), ("norm", NORMS), ("position_encoding", POSITION_ENCODINGS)):
        for word in words:
            to_run(validate(translated(model={key: word})), gpus_per_node=4)


def test_sizes_layout_and_batch_are_translated() -> None:
    content = translated(
        model={"gradient_checkpointing": True},
        training={
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "pipeline_schedule": "interleaved_1f1b",
            "num_chunks": 2,
            "max_steps": 100,
        },
        prediction={"world_size": 8, "price_per_gpu_hour": 2.0},
    )
    assert content["system"] == "Perlmutter"
    assert content["model"] == {
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "ffn_hidden_size": 2816,
        "vocab_size": 32000,
        "sequence_length": 512,
        "activation": "swiglu",
        "normalization": "rms_norm",
        "attention": "flash",
        "rotary_fraction": 1.0,
        "biases": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tied_embeddings": False,
        "loss": "vocabulary_parallel",
    }
    layout = content["parallelism"]
    assert [layout[f"{axis}_parallel_size"] for axis in ("tensor", "pipeline", "virtual_pipeline", "data")] == [2] * 4
    assert layout["schedule"] == "interleaved_1f1b"
    assert content["training"] == {
        "framework": "pytorch",
        "micro_batch_size": 2,
        "num_micro_batches": 8,
        "precision": "bf16",
        "recompute_stops_early": True,
        "recompute": "full",
    }
    assert content["budget"] == {"train_tokens": 100 * 2 * 8 * 2 * 512, "price_per_gpu_hour": 2.0}


def test_parameters_are_those_of_the_trainer_s_model() -> None:
    for model in (example()["model"], {"position_encoding": "learned"}):
        config = ModelConfig.from_dict(model)
        run, *_ = prepare({**example(), "model": model}, HERE)
        assert run.model.num_parameters() == config.num_parameters


@pytest.mark.parametrize(
    ("zero_stage", "reduction", "bucket"), [(0, "all_reduce", 6553600), (1, "all_reduce", 6553600), (3, None, None)]
)
def test_replicas_reduce_as_pytorch_does(zero_stage: int, reduction: str | None, bucket: int | None) -> None:
    layout = translated(training={"zero_stage": zero_stage})["parallelism"]
    assert (layout["zero_stage"], layout["overlap_gradient_reduction"]) == (zero_stage, True)
    assert layout["gradient_reduction"] == (reduction or "reduce_scatter")
    assert layout.get("gradient_bucket_elements") == bucket


def test_without_a_world_size_one_replica_is_predicted() -> None:
    content = example(training={"tensor_parallel_size": 2})
    del content["prediction"]["world_size"]
    layout = llm_trainer.translate(content, "x.yaml", HERE).content["parallelism"]
    assert (layout["tensor_parallel_size"], layout["data_parallel_size"]) == (2, 1)


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_is_told_by_its_content_and_predicted_as_it_is(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"train{suffix}"
    path.write_text(yaml.safe_dump(example()) if suffix == ".yaml" else json.dumps(example()), encoding="utf-8")
    assert detect(path) == LLM_TRAINER_FORMAT
    assert LLM_TRAINER_FORMAT in FORMATS
    assert read_any(path).content == translated()
    assert predict(path).step == predict(translated()).step


def test_another_configuration_takes_from_a_file(tmp_path: Path) -> None:
    content = example()
    del content["prediction"]
    (tmp_path / "train.json").write_text(json.dumps(content), encoding="utf-8")
    whole = tmp_path / "run.yaml"
    whole.write_text("system: Perlmutter\nfrom: train.json\nparallelism: {data_parallel_size: 4}\n", encoding="utf-8")
    assert predict(whole).step == predict(translated()).step
    assert read_any(tmp_path / "train.json", num_gpus=8).content["parallelism"]["data_parallel_size"] == 8


def test_a_full_form_is_none_of_llm_trainer() -> None:
    full = {"system": "Perlmutter", **{key: translated()[key] for key in ("model", "parallelism", "training")}}
    assert predict(full).step == predict(translated()).step


def test_data_alone_tell_a_file_of_defaults(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("data: {max_length: 512}\nprediction: {system: Perlmutter}\n", encoding="utf-8")
    model = predict(path).run.model
    assert (model.sequence_length, model.hidden_size) == (512, ModelConfig().d_model)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"model": {"activation": "relu"}}, "model.activation relu: predicted with the time of gelu"),
        ({"model": {"pre_norm": False}}, "model.pre_norm false"),
        ({"model": {"position_encoding": "sinusoidal"}}, "predicted as learned positions"),
        ({"training": {"compile_model": True}}, "compiled kernels are not modelled"),
        ({"training": {"optimizer": "sgd"}}, "training.optimizer sgd"),
        ({"data": {"pack_sequences": False}}, "samples of max_length, 512, tokens"),
        ({}, "training.use_amp"),
    ],
)
def test_what_is_left_out_is_noted(changes: dict[str, Any], note: str) -> None:
    assert note in notes(**changes)


def test_a_run_in_fp32_needs_no_note() -> None:
    assert not notes(training={"use_amp": False, "compile_model": False})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"d_modle": 3}}, r"model\.d_modle is 3; it is not a key of llm_trainer\. Did you mean d_model\?"),
        ({"model": {"max_seq_len": 256}}, r"model\.max_seq_len is 256; data\.max_length is 512"),
        ({"model": {"norm": "batch"}}, r"model\.norm is 'batch'; expected layer_norm, rms_norm"),
        ({"training": {"tensor_parallel_size": 3}}, "world_size is 4; .* 3, must divide it. Try 3 or a multiple"),
        ({"training": {"batch_size": "many"}}, r"training\.batch_size is 'many'; expected a whole number"),
        ({"prediction": {"sytem": "x"}}, r"prediction\.sytem is 'x'; it is not a key .* Did you mean system\?"),
        ({"dato": {"max_length": 512}}, r"dato is no section of llm_trainer\. Did you mean data\?"),
    ],
)
def test_a_slip_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        translated(**changes)
    assert "\n" not in str(caught.value)


def test_without_a_system_the_error_lists_them() -> None:
    content = example()
    del content["prediction"]
    with pytest.raises(MissingKeyError, match=r"prediction\.system is missing; name a published system: .*Perlmutter"):
        predict(content)
